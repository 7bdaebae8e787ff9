"""One GRAPH_EXECUTE: arguments bound in place, strided ones staged, and the profile written if asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from softnpu.emulator.engine.context import Bytes, EngineContext
from softnpu.emulator.engine.dynamic import DynamicBinding, bind
from softnpu.emulator.engine.executor import Binding, LoadedImage
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.steps import LOADING
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.blob import ArgumentMeta
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

if TYPE_CHECKING:
    from softnpu.emulator.engine.engine import Engine

Copy = Callable[[], None]
_MOST_ARGUMENTS = 32  # more are not compared with those of others


class Range(NamedTuple):
    """Bytes of client memory: of which file, from where to where. One file may be mapped twice."""

    file: tuple[int, int]
    start: int
    end: int


def ready(image: EngineImage) -> object:
    """Whether an image can run: `LOADING`, or None; refuses one that could not be loaded."""
    if image.fault is not None:
        raise Refused(image.fault)
    return LOADING if image.loaded is None else None


class Inference:
    """A step. It binds its infer request when it first runs with the image on the device.

    `streams`: how many inferences may run side by side with this one among them; 0 if it runs alone.
    """

    __slots__ = (
        "_after",
        "_before",
        "_binding",
        "_command",
        "_context",
        "_engine",
        "_image",
        "_profile",
        "_reads",
        "_run",
        "_staged",
        "_writes",
        "streams",
    )

    def __init__(self, context: EngineContext, command: cmd.GraphExecute, engine: Engine) -> None:
        self._context = context
        self._command = command
        self._engine = engine
        self._image = context.graph(command.graph)
        self._before: list[Copy] = []
        self._after: list[Copy] = []
        self._staged = 0
        self._run: Callable[[], None] | None = None
        self._binding: Binding | None = None
        self._reads: list[Range] = []
        self._writes: list[Range] = []
        self.streams = 0
        self._profile: Bytes | None = self._profile_memory()
        if self._image.loaded is not None:
            self._bind(self._image.loaded)

    def __call__(self) -> object:
        run = self._run
        if run is None:
            if ready(self._image) is LOADING:
                return LOADING
            assert self._image.loaded is not None
            run = self._bind(self._image.loaded)
        if not self._staged:
            run()
            return None
        for copy in self._before:
            copy()
        run()
        for copy in self._after:
            copy()
        self._engine.count_staged(self._staged)
        return None

    def _bind(self, image: LoadedImage) -> Callable[[], None]:
        meta = image.meta
        places = self._command.arguments
        if len(places) != len(meta.arguments):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{meta.name}'",
                f"{len(places)} arguments",
                f"{len(meta.arguments)}: {', '.join(argument.name for argument in meta.arguments)}",
            )
        strides = dict(self._command.strides)
        views = []
        for index, (at, argument) in enumerate(zip(places, meta.arguments, strict=True)):
            try:
                views.append(self._view(at, argument, strides.get(index)))
            except Refused as error:
                fault = error.fault
                name = f"graph '{meta.name}', argument '{argument.name}', {fault.object}"
                raise refuse(ZeResult(fault.result), name, fault.found, fault.expected, fault.hint) from error
        inputs = views[: len(meta.inputs)]
        for state in meta.states:
            views[state.output] = self._apart(views[state.output], inputs)
        binding = bind(image, views, self._engine.count_staged)
        given_up = self._engine.given_up
        if self._may_overlap(image, binding):
            self._run = partial(binding.run, self._engine.look_for_more)
        elif self._profile is None:
            self._run = partial(binding.run, given_up)
        else:
            self._run = partial(_run_profiled, binding, given_up, self._profile)
        return self._run

    # ------------------------------------------------------------ side by side with others

    @property
    def overlaps(self) -> bool:
        """Whether others may run beside it, and it is long enough to be worth it."""
        return self._binding is not None and not self._binding.short

    def begin(self) -> None:
        """Starts before its turn."""
        assert self._binding is not None
        self._binding.begin()

    def call_off(self) -> None:
        """Undoes `begin`, if it was not waited for yet."""
        if self._binding is not None:
            self._binding.call_off()

    def disturbs(self, other: Inference) -> bool:
        """Whether it makes a difference that this one does not wait for the other's end."""
        return (
            _meet(self._writes, other._writes)
            or _meet(self._writes, other._reads)
            or _meet(self._reads, other._writes)
        )

    def _may_overlap(self, image: LoadedImage, binding: Binding) -> bool:
        """Whether this inference is nothing but one run of an image with streams, on memory that is known."""
        meta, places = image.meta, self._command.arguments
        alone = image.streams < 2 or isinstance(binding, DynamicBinding)
        if alone or self._staged or self._profile is not None or len(places) > _MOST_ARGUMENTS:
            return False
        for at, argument in zip(places, meta.arguments, strict=True):
            memory = self._context.place(at, argument.byte_size)
            start = memory.offset + at.offset
            ranges = self._reads if argument.input else self._writes
            ranges.append(Range(memory.mapping.identity, start, start + argument.byte_size))
        self._binding, self.streams = binding, image.streams
        binding.overlap()
        return True

    # ------------------------------------------------------------ its memory

    def _apart(self, output: Bytes, inputs: Sequence[Bytes]) -> Bytes:
        """An output that overlaps no input: OpenVINO would write it while it still reads.

        Intel's plugin has one buffer for a state, which is both.
        """
        if not any(np.may_share_memory(output, view) for view in inputs):
            return output
        staging = np.empty_like(output)
        self._after.append(partial(np.copyto, output, staging))
        self._staged += output.nbytes
        return staging

    def _view(self, at: cmd.MemoryAt, argument: ArgumentMeta, strides: tuple[int, ...] | None) -> Bytes:
        if argument.is_dynamic:
            return self._room(at, argument, strides)
        if strides is None:
            return self._context.view(at, argument.byte_size, argument.alignment)
        # OpenVINO takes dense tensors only: a strided argument goes through a staging buffer
        item = argument.alignment
        steps = strides[: len(argument.shape)][::-1]
        if len(steps) != len(argument.shape) or not all(steps):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "strides",
                f"{list(strides)}",
                f"{len(argument.shape)} strides of at least 1, innermost first",
            )
        extent = 1 + sum((dim - 1) * step for dim, step in zip(argument.shape, steps, strict=True))
        memory = self._context.view(at, extent * item, item)
        staging = np.empty(argument.byte_size, dtype=np.uint8)
        shape = (*argument.shape, item)
        spread = np.lib.stride_tricks.as_strided(memory, shape, (*(step * item for step in steps), 1))
        dense = staging.reshape(shape)
        if argument.input:
            self._before.append(partial(np.copyto, dense, spread))
        else:
            self._after.append(partial(np.copyto, spread, dense))
        self._staged += math.prod(shape)
        return staging

    def _room(self, at: cmd.MemoryAt, argument: ArgumentMeta, strides: tuple[int, ...] | None) -> Bytes:
        """All memory from `at` on that the argument may come to use."""
        if strides is not None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT, "strides", f"{list(strides)}", "none with dynamic dimensions"
            )
        size = self._context.place(at, 0, argument.alignment).size - at.offset
        return self._context.view(at, size if argument.unbounded else min(size, argument.byte_size))

    def _profile_memory(self) -> Bytes | None:
        at = self._command.profiling
        if at is None:
            return None
        memory = self._context.place(at, profiling.HEADER.size)
        return self._context.view(at, memory.size - at.offset)


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(
        one.file == other.file and one.start < other.end and other.start < one.end
        for one in some
        for other in others
    )


def _run_profiled(binding: Binding, given_up: Callable[[], bool], memory: Bytes) -> None:
    start = time.monotonic_ns()
    binding.run(given_up)
    end = time.monotonic_ns()
    data = profiling.encode(profiling.Profile(start, end, binding.layers(), 0), memory.nbytes)
    memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)
