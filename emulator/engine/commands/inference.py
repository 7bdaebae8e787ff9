"""GRAPH_EXECUTE: bind or stage arguments, run one inference, write its profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.commands.arguments import Arguments
from softnpu.emulator.engine.commands.steps import CANCELLED, LOADING, Parts, Pause, RunningSubmission
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.memory.staging import Piece
from softnpu.emulator.engine.tracing import run_with_layers
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.dynamic.binding import DynamicBinding
from softnpu.emulator.openvino.dynamic.states import bind
from softnpu.emulator.openvino.executor import Binding, LoadedImage
from softnpu.emulator.openvino.modelled_time import ModelledTime
from softnpu.emulator.openvino.twins import TwinError, TwinMaker, TwinRequest, twin_of
from softnpu.emulator.openvino.weights.weight_files import GuardedWeights

Run = Callable[[], bool]
"""One inference; False if it was cancelled."""
_MAX_ARGUMENTS = 32  # an inference with more never overlaps others


def check_loaded(image: EngineImage) -> Pause | None:
    """Return None if an image can run, else `LOADING`; refuse one that failed to load."""
    if image.info is not None:
        raise Refused(image.info)
    return None if image.is_ready() else LOADING


class Inference:
    """A step that runs an inference; its infer request is created on the first run with the image loaded.

    `streams`: number of inferences at once, including this one; 0 if it runs alone. `time_ns`: duration
    of the last one.
    """

    __slots__ = (
        "_arguments",
        "_binding",
        "_bound",
        "_command",
        "_early_ns",
        "_image",
        "_profile",
        "_reads",
        "_run",
        "_running",
        "_space",
        "_traffic",
        "_writes",
        "streams",
        "time_ns",
    )

    def __init__(self, space: AddressSpace, command: cmd.GraphExecute, running: RunningSubmission) -> None:
        self._space = space
        self._command = command
        self._running = running
        self._image = space.graph(command.graph)
        self._arguments: Arguments | None = None  # if some are copied
        self._run: Run | None = None
        self._traffic = (0, 0)
        self._binding: Binding | None = None  # if it may run concurrently
        self._bound: Binding | None = None
        self._reads: list[Range] = []
        self._writes: list[Range] = []
        self.streams = 0
        self.time_ns = 0
        self._early_ns = 0  # when it started, if early
        self._profile: Bytes | None = self._profile_memory()
        if self._image.loaded is not None:
            self._bind(self._image.loaded)

    def __call__(self) -> Pause | Parts | None:
        start = self._early_ns or time.monotonic_ns()
        pause = self._infer()
        self.time_ns, self._early_ns = time.monotonic_ns() - start, 0
        return pause

    def count(self) -> int:
        """Add its time to its image's counters; return that time in nanoseconds."""
        self._image.count(self.time_ns)
        return self.time_ns

    def _infer(self) -> Pause | None:
        run = self._run
        if run is None:
            if check_loaded(self._image) is LOADING:
                return LOADING
            image = self._image.loaded
            assert image is not None
            run = self._bind(image)
            self._running.count_traffic(*self.traffic)
        arguments = self._arguments
        if arguments is None:
            return None if run() else CANCELLED
        if arguments.piece is not None:
            return self._run_once(run, arguments, arguments.piece)
        if not self._run_staged(run, arguments):
            return CANCELLED
        self._running.count_staged(arguments.staged)
        return None

    def _run_once(self, run: Run, arguments: Arguments, piece: Piece) -> Pause | None:
        """Run an inference that overwrites its inputs: once into staging, then copy the results."""
        staged, note = piece.array, self._running.pending_effect()
        if note is not None:  # the previous engine died while copying
            staged = self._space.staging.find(note, arguments.size)
        else:
            try:
                if not self._run_staged(run, arguments):
                    return CANCELLED
            except Refused as error:
                if error.info.result == ZeResult.ERROR_INVALID_SIZE:
                    arguments.deliver_shapes(staged)
                raise
            arguments.check(staged)
            self._running.note_effect(piece.note())
            if failpoints.active is not None:
                failpoints.hit("engine.staged")
        copied = arguments.deliver(staged)
        if failpoints.active is not None:
            failpoints.hit("engine.copied")
        self._running.count_staged(arguments.staged + copied)
        return None

    def _run_staged(self, run: Run, arguments: Arguments) -> bool:
        for copy in arguments.before:
            copy()
        if not run():
            return False
        for copy in arguments.after:
            copy()
        return True

    def _bind(self, image: LoadedImage) -> Run:
        meta = image.meta
        bound = self._command.arguments
        if len(bound) != len(meta.arguments):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{meta.name}'",
                found=f"{len(bound)} arguments",
                expected=f"{len(meta.arguments)}: {', '.join(argument.name for argument in meta.arguments)}",
            )
        arguments = Arguments(self._space, self._command, meta)
        self._traffic = arguments.traffic
        binding = self._bound = bind(image, arguments.views, self._running.count_staged)
        is_cancelled = self._running.is_cancelled
        if arguments.staged or arguments.piece is not None:
            self._arguments = arguments
        compute: Callable[[Callable[[], bool]], bool] = binding.run
        if image.has_layers:
            compute = partial(run_with_layers, binding.run, binding)
        if self._may_overlap(image, binding):
            self._reads, self._writes = arguments.reads, arguments.writes
            self._binding, self.streams = binding, image.streams
            binding.poll_often()
            self._run = partial(compute, self._running.poll_overlap)
        elif self._profile is None:
            self._run = partial(compute, is_cancelled)
        else:
            self._run = partial(_run_profiled, binding, is_cancelled, self._profile)
            if image.modelled is not None:
                run, modelled = self._run, image.modelled
                self._run = partial(_profile_modelled, run, self._running, modelled, self._profile)
        if image.computes_sizes:
            self._run = partial(memory_limit.run, self._run, meta.name, image.weights_size)
        if image.weights is not None:
            self._run = partial(_run_guarded, self._run, image.weights, meta.name)
        return self._run

    def renew(self) -> None:
        """Renew its image, shared with others, after a failure; this inference does not run again."""
        if self._image.loaded is not None:
            self._image.loaded.renew()

    @property
    def model(self) -> str:
        """The name of the model; empty before it is on the device."""
        return "" if self._image.loaded is None else self._image.loaded.meta.name

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that it reads and writes; none before it is bound to the image on the device."""
        return self._traffic if self._run is not None else (0, 0)

    # ------------------------------------------------------------ in C++

    @property
    def counts(self) -> memoryview:
        """The counters of its image."""
        return self._image.counts

    @property
    def has_twin(self) -> bool:
        """Whether its image has a twin that it can use."""
        return self._image.loaded is not None and twin_of(self._image.loaded) is not None

    def wants_twin(self, maker: TwinMaker) -> bool:
        """Request a twin if it can use one; return False if it never will."""
        image, bound = self._image.loaded, self._bound
        if image is None or bound is None or not self._is_plain(bound):
            return False
        if bound.short and not image.twin_asked:
            inputs = bound.views[: len(image.meta.inputs)]
            maker.ask(image, [view.tobytes() for view in inputs])
        return True

    def twin_request(self) -> TwinRequest:
        """Return a request of the twin, bound to its memory. Raises `TwinError`."""
        image, bound = self._image.loaded, self._bound
        twin = None if image is None else twin_of(image)
        if twin is None or bound is None or not self._is_plain(bound):
            raise TwinError("it is no plain inference of an image with a twin")
        return twin.request(bound.views)

    def _is_plain(self, bound: Binding) -> bool:
        """Whether it is a bare in-place inference: no copies, no profile, none concurrent."""
        has_more = self._arguments is not None or self._profile is not None or self._binding is not None
        return type(bound) is Binding and not has_more and not bound.copies

    # ------------------------------------------------------------ concurrent inferences

    @property
    def overlaps(self) -> bool:
        """Whether others may run concurrently, and it is long enough to be worth it."""
        return self._binding is not None and not self._binding.short

    def start_early(self) -> None:
        """Start before its turn."""
        assert self._binding is not None
        self._early_ns = time.monotonic_ns()
        self._binding.start_early()

    def cancel_early(self) -> None:
        """Cancel an early start, unless its turn has come."""
        self._early_ns = 0
        if self._binding is not None:
            self._binding.cancel_early()

    def conflicts(self, other: Inference) -> bool:
        """Whether one writes memory that the other uses."""
        return (
            _overlap(self._writes, other._writes)
            or _overlap(self._writes, other._reads)
            or _overlap(self._reads, other._writes)
        )

    def _may_overlap(self, image: LoadedImage, binding: Binding) -> bool:
        """Whether this is a plain run of an image with streams, on memory known in advance."""
        if image.streams < 2 or image.computes_sizes or isinstance(binding, DynamicBinding):
            return False
        if self._arguments is not None or self._profile is not None:
            return False  # it copies
        if self._space.foreign_of(at.memory for at in self._command.arguments):
            return False  # another program may write it until its turn
        return len(self._command.arguments) <= _MAX_ARGUMENTS

    def _profile_memory(self) -> Bytes | None:
        at = self._command.profiling
        if at is None:
            return None
        memory = self._space.resolve(at, profiling.HEADER.size)
        return self._space.view(at, memory.size - at.offset)


class ModelledInference(Inference):
    """An inference on a device that shows the modelled clock."""

    __slots__ = ()

    def __call__(self) -> Pause | Parts | None:
        started_ns = time.monotonic_ns()
        pause = super().__call__()
        loaded = self._image.loaded
        if pause is not None or loaded is None:
            return pause
        return self._running.run_modelled(loaded.modelled, started_ns)


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


def _run_guarded(run: Run, weights: GuardedWeights, model: str) -> bool:
    try:
        return run()
    finally:
        weights.check(model)  # with truncated weights OpenVINO's message is meaningless


def _run_profiled(binding: Binding, is_cancelled: Callable[[], bool], memory: Bytes) -> bool:
    start = time.monotonic_ns()
    if not binding.run(is_cancelled):
        return False
    end = time.monotonic_ns()
    _write_profile(profiling.Profile(start, end, binding.layers(), 0), memory)
    return True


def _profile_modelled(run: Run, running: RunningSubmission, modelled: ModelledTime, memory: Bytes) -> bool:
    """Run, and write the modelled instead of the host's profile."""
    if not run():
        return False
    _write_profile(modelled.profile(running.device_ns() + modelled.ns), memory)
    return True


def _write_profile(profile: profiling.Profile, memory: Bytes) -> None:
    data = profiling.encode(profile, memory.nbytes)
    memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)
