"""GRAPH_EXECUTE: bind or stage arguments, run one inference, write its profile."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.commands.arguments import Arguments
from softnpu.emulator.engine.commands.concurrent import ConcurrentRun
from softnpu.emulator.engine.commands.running_submission import RunningSubmission
from softnpu.emulator.engine.commands.steps import CANCELLED, LOADING, Parts, Pause, StepQueue
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.staging import StagingBuffer
from softnpu.emulator.engine.tracing import run_with_layers
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import c_model_maker, memory_limit
from softnpu.emulator.openvino.bind import bind
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.c_models import CModelError, CModelRequest
from softnpu.emulator.openvino.copies import CopyMaker
from softnpu.emulator.openvino.dynamic.binding import DynamicBinding
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.weights.weight_files import GuardedWeights

Run = Callable[[], bool]
"""One inference; False if it was cancelled."""
_MAX_ARGUMENTS = 32  # an inference with more never overlaps others
_USUALLY_CALLED_NS, _MOST_CALLED_NS = 20_000_000, 500_000_000  # the second on a busy machine


def check_loaded(image: EngineImage) -> Pause | None:
    """Return None if an image can run, else `LOADING`; refuse one that failed to load."""
    if image.info is not None:
        raise Refused(image.info)
    return None if image.is_ready() else LOADING


class Inference:
    """A step that runs an inference; its infer request is created on the first run with the image loaded.

    `time_ns`: duration of the last one.
    """

    __slots__ = (
        "_bound",
        "_c_model_request",
        "_command",
        "_concurrent",
        "_image",
        "_is_bare",
        "_overwriting",
        "_profile",
        "_run",
        "_running",
        "_space",
        "_traffic",
        "time_ns",
    )

    def __init__(self, space: AddressSpace, command: cmd.GraphExecute, running: RunningSubmission) -> None:
        self._space = space
        self._command = command
        self._running = running
        self._image = space.graph(command.graph)
        self._overwriting: tuple[Arguments, StagingBuffer] | None = None  # if outputs overlap inputs
        self._is_bare = False  # neither copies nor a profile
        self._run: Run | None = None
        self._traffic = (0, 0)
        self._bound: Binding | None = None
        self._concurrent: ConcurrentRun | None = None
        self._c_model_request: weakref.ref[CModelRequest] | None = None
        self.time_ns = 0
        self._profile: Bytes | None = self._profile_memory()
        if self._image.loaded is not None:
            self._bind(self._image.loaded)

    def __call__(self) -> Pause | Parts | None:
        now = time.monotonic_ns()
        concurrent = self._concurrent
        start = now if concurrent is None else concurrent.started_ns or now
        pause = self._infer()
        self.time_ns = time.monotonic_ns() - start
        if concurrent is not None:
            concurrent.started_ns = 0
        modelled, image = self._running.modelled, self._image.loaded
        if modelled is None or pause is not None or image is None:
            return pause
        return modelled.end_inference(self._running.queue, image.modelled, now)

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
            self._running.counters.count_traffic(*self.traffic)
        if self._overwriting is not None:
            return self._run_once(run, *self._overwriting)
        return None if run() else CANCELLED

    def _run_once(self, run: Run, arguments: Arguments, buffer: StagingBuffer) -> Pause | None:
        """Run an inference that overwrites its inputs: once into staging, then copy the results."""
        staged, entry = buffer.array, self._running.queue.pending_intent()
        if entry is not None:  # the previous engine died while copying
            staged = self._space.staging.find(entry, arguments.size)
        else:
            try:
                if not run():
                    return CANCELLED
            except Refused as error:
                if error.info.result == ZeResult.ERROR_INVALID_SIZE:
                    arguments.deliver_shapes(staged)
                raise
            arguments.check(staged)
            self._running.queue.log_intent(buffer.entry())
            if failpoints.active is not None:
                failpoints.hit("engine.staged")
        copied = arguments.deliver(staged)
        if failpoints.active is not None:
            failpoints.hit("engine.copied")
        self._running.counters.count_staged(copied)
        return None

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
        running = self._running
        binding = self._bound = bind(image, arguments.views, running.counters.count_staged)
        if arguments.buffer is not None:
            self._overwriting = arguments, arguments.buffer
        self._is_bare = not arguments.staged and arguments.buffer is None and self._profile is None
        is_cancelled = running.is_cancelled
        if image.streams > 1 and self._may_overlap(image, binding):
            self._concurrent = ConcurrentRun(binding, image.streams, arguments.reads, arguments.writes)
            is_cancelled = running.poll_overlap
        run: Run = partial(binding.run, is_cancelled)
        if self._profile is not None:
            run = partial(_run_profiled, run, partial(_profile_of, image, binding, running), self._profile)
        elif image.has_layers:
            run = partial(run_with_layers, run, binding)
        if image.computes_sizes:
            run = partial(memory_limit.run, run, meta.name, image.weights_size)
        run = _guarded(run, image)
        if arguments.staged:
            run = partial(_run_staged, run, arguments, running.counters)
        self._run = run
        return run

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
    def has_c_model(self) -> bool:
        """Whether its image has a C model that it can use."""
        image, bound = self._image.loaded, self._bound
        if image is None or bound is None or image.c_model is None:
            return False
        return self._is_plain(bound)

    def ask_c_model(self, maker: CopyMaker) -> None:
        """Request a C model of its image, unless it cannot use one or is too long for it."""
        image, bound = self._image.loaded, self._bound
        if image is None or bound is None or image.c_model_asked:
            return
        if bound.is_short and self._is_plain(bound):
            c_model_maker.ask(maker, image, bound.views)

    def c_model_request(self) -> CModelRequest:
        """Return the C model's request on this inference's memory, one for all its prepared submissions.

        Raises `CModelError`.
        """
        image, bound = self._image.loaded, self._bound
        c_model = None if image is None else image.c_model
        if c_model is None or bound is None or not self._is_plain(bound):
            raise CModelError("it is no plain inference of an image with a C model")
        request = None if self._c_model_request is None else self._c_model_request()
        if request is None or not request.is_of(c_model):
            request = c_model.request(bound.views)
            self._c_model_request = weakref.ref(request)
        return request

    def _is_plain(self, bound: Binding) -> bool:
        """Whether it is a bare in-place inference: no copies, no profile, none concurrent."""
        return type(bound) is Binding and self._is_bare and self._concurrent is None and not bound.copies

    # ------------------------------------------------------------ called from C++

    @property
    def can_be_called(self) -> bool:
        """Whether it can run within a call of C++, which handles no messages meanwhile, and is worth it.

        On a C model it needs no call, and a long one would be cancelled.
        """
        bound = self._bound
        if type(bound) is not Binding or self._profile is not None or self.has_c_model:
            return False
        if self._concurrent is not None:
            return False  # its image has streams
        return self.time_ns < _USUALLY_CALLED_NS

    def run_called(self, queue: StepQueue) -> bool:
        """Run within a call of C++; False if it has to run again in its turn."""
        self._running.queue = queue
        self._running.called_until_ns = time.monotonic_ns() + _MOST_CALLED_NS
        try:
            return self._infer() is None
        finally:
            del self._running.queue

    # ------------------------------------------------------------ concurrent inferences

    def concurrent(self) -> ConcurrentRun | None:
        """Return how it runs beside others; None if it cannot, or is too short to be worth it."""
        found = self._concurrent
        return None if found is None or found.is_short else found

    def cancel_early(self) -> None:
        """Cancel an early start, unless its turn has come."""
        if self._concurrent is not None:
            self._concurrent.cancel_early()

    def _may_overlap(self, image: LoadedImage, binding: Binding) -> bool:
        """Whether this is a plain run on memory known in advance."""
        if image.computes_sizes or isinstance(binding, DynamicBinding):
            return False
        if not self._is_bare:
            return False  # it copies
        if self._space.foreign_of(at.memory for at in self._command.arguments):
            return False  # another program may write it until its turn
        return len(self._command.arguments) <= _MAX_ARGUMENTS

    def _profile_memory(self) -> Bytes | None:
        at = self._command.profiling
        if at is None:
            return None
        memory = self._space.resolve(at, profiling.HEADER.size)
        return self._space.target(at, memory.size - at.offset)


def _guarded(run: Run, image: LoadedImage) -> Run:
    return run if image.weights is None else partial(_run_guarded, run, image.weights, image.meta.name)


def _run_guarded(run: Run, weights: GuardedWeights, model: str) -> bool:
    try:
        return run()
    finally:
        weights.check(model)  # with truncated weights OpenVINO's message is meaningless


def _run_staged(run: Run, arguments: Arguments, counters: Counters) -> bool:
    for copy in arguments.before:
        copy()
    if not run():
        return False
    for copy in arguments.after:
        copy()
    counters.count_staged(arguments.staged)
    return True


def _run_profiled(run: Run, profile_of: Callable[[int, int], profiling.Profile], memory: Bytes) -> bool:
    start = time.monotonic_ns()
    if not run():
        return False
    data = profiling.encode(profile_of(start, time.monotonic_ns()), memory.nbytes)
    memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return True


def _profile_of(
    image: LoadedImage, binding: Binding, running: RunningSubmission, start: int, end: int
) -> profiling.Profile:
    """Return the modelled profile if the device shows the modelled clock, else the host's."""
    if image.modelled is not None:
        return image.modelled.profile(running.queue.device_ns + image.modelled.ns)
    return profiling.Profile(start, end, binding.layers(), 0)
