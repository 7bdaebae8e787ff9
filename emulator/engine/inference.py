"""One GRAPH_EXECUTE: arguments bound in place or staged, one run, and the profile if it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.arguments import Arguments
from softnpu.emulator.engine.context import Bytes, EngineContext, Range
from softnpu.emulator.engine.dynamic import DynamicBinding, bind
from softnpu.emulator.engine.executor import Binding, LoadedImage
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.staging import Piece
from softnpu.emulator.engine.steps import GIVEN_UP, LOADING
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

if TYPE_CHECKING:
    from softnpu.emulator.engine.steps import Turn

Run = Callable[[], bool]
"""One inference: whether it came to its end, or was cut off."""
_MOST_ARGUMENTS = 32  # more are not compared with those of others


def ready(image: EngineImage) -> object:
    """Whether an image can run: `LOADING`, or None; refuses one that could not be loaded."""
    if image.info is not None:
        raise Refused(image.info)
    return LOADING if image.loaded is None else None


class Inference:
    """A step. It binds its infer request when it first runs with the image on the device.

    `streams`: how many inferences may run side by side with this one among them; 0 if it runs alone.
    """

    __slots__ = (
        "_arguments",
        "_binding",
        "_command",
        "_context",
        "_image",
        "_profile",
        "_reads",
        "_run",
        "_turn",
        "_writes",
        "streams",
    )

    def __init__(self, context: EngineContext, command: cmd.GraphExecute, turn: Turn) -> None:
        self._context = context
        self._command = command
        self._turn = turn
        self._image = context.graph(command.graph)
        self._arguments: Arguments | None = None  # if some are copied
        self._run: Run | None = None
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
        arguments = self._arguments
        if arguments is None:
            return None if run() else GIVEN_UP
        if arguments.piece is not None:
            return self._run_apart(run, arguments, arguments.piece)
        if not self._run_staged(run, arguments):
            return GIVEN_UP
        self._turn.count_staged(arguments.staged)
        return None

    def _run_apart(self, run: Run, arguments: Arguments, piece: Piece) -> object:
        """An inference that overwrites what it reads: it runs once, then its results are copied."""
        staged, note = piece.array, self._turn.pending_effect()
        if note is not None:  # an engine has died while it copied
            staged = self._context.staging.find(note, arguments.size)
        else:
            try:
                if not self._run_staged(run, arguments):
                    return GIVEN_UP
            except Refused as error:
                if error.info.result == ZeResult.ERROR_INVALID_SIZE:
                    arguments.tell_shapes(staged)
                raise
            arguments.check(staged)
            self._turn.note_effect(piece.note())
            if failpoints.active is not None:
                failpoints.hit("engine.staged")
        copied = arguments.deliver(staged)
        if failpoints.active is not None:
            failpoints.hit("engine.copied")
        self._turn.count_staged(arguments.staged + copied)
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
        places = self._command.arguments
        if len(places) != len(meta.arguments):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{meta.name}'",
                found=f"{len(places)} arguments",
                expected=f"{len(meta.arguments)}: {', '.join(argument.name for argument in meta.arguments)}",
            )
        arguments = Arguments(self._context, self._command, meta)
        binding = bind(image, arguments.views, self._turn.count_staged)
        is_cancelled = self._turn.is_cancelled
        if arguments.staged or arguments.piece is not None:
            self._arguments = arguments
        if self._may_overlap(image, binding):
            self._reads, self._writes = arguments.reads, arguments.writes
            self._binding, self.streams = binding, image.streams
            binding.overlap()
            self._run = partial(binding.run, self._turn.look_for_more)
        elif self._profile is None:
            self._run = partial(binding.run, is_cancelled)
        else:
            self._run = partial(_run_profiled, binding, is_cancelled, self._profile)
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
        if image.streams < 2 or isinstance(binding, DynamicBinding):
            return False
        copies = self._arguments is not None or self._profile is not None
        return not copies and len(self._command.arguments) <= _MOST_ARGUMENTS

    def _profile_memory(self) -> Bytes | None:
        at = self._command.profiling
        if at is None:
            return None
        memory = self._context.place(at, profiling.HEADER.size)
        return self._context.view(at, memory.size - at.offset)


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(one.meets(other) for one in some for other in others)


def _run_profiled(binding: Binding, is_cancelled: Callable[[], bool], memory: Bytes) -> bool:
    start = time.monotonic_ns()
    if not binding.run(is_cancelled):
        return False
    end = time.monotonic_ns()
    data = profiling.encode(profiling.Profile(start, end, binding.layers(), 0), memory.nbytes)
    memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return True
