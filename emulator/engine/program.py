"""Decoded command buffers: a command becomes one ready call, checked once and run many times."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from softnpu.emulator.engine.context import EngineContext
from softnpu.emulator.engine.executor import LoadedImage
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import Signal

if TYPE_CHECKING:
    from softnpu.emulator.engine.engine import Engine

Step = Callable[[], object]
"""One command. It returns `BLOCKED` or `LOADING` when it cannot go on yet and must be called again."""

BLOCKED = object()
"""It waits for an event: the watchdog looks on."""
LOADING = object()
"""It waits for an image that is being loaded again after an engine reset."""


class Program(NamedTuple):
    """The steps of one command buffer, valid for these bytes while every handle in `uses` lives."""

    data: bytes
    uses: frozenset[int]
    steps: tuple[Step, ...]
    commands: int
    inferences: int


def decode(data: bytes, context: EngineContext, engine: Engine) -> Program:
    """Checks every command of a buffer (a private copy) against the context before any of them runs."""
    steps: list[Step] = []
    uses: set[int] = set()
    count = inferences = 0
    for number, command in enumerate(cmd.decode_buffer(data)):
        count += 1
        try:
            step = _step(command, context, engine)
        except Refused as error:
            raise _numbered(error, number, command) from error
        if step is not None:
            steps.append(step)
        uses.update(cmd.handles(command))
        inferences += isinstance(command, cmd.GraphExecute)
    return Program(data, frozenset(uses), tuple(steps), count, inferences)


def _step(command: cmd.Command, context: EngineContext, engine: Engine) -> Step | None:
    match command:
        case cmd.Barrier():
            return None  # commands of a queue run one after the other: there is nothing to wait for
        case cmd.Fill(at, size, pattern):
            return _fill(context, at, size, pattern)
        case cmd.Copy(target, source, size):
            return partial(np.copyto, context.view(target, size), context.view(source, size))
        case cmd.Timestamp(at):
            return partial(_write_time, context.view(at, 8, 8).view(np.uint64))
        case cmd.EventSignal(at):
            return partial(_signal, _event(context, at), engine)
        case cmd.EventReset(at):
            return _event(context, at).device_reset
        case cmd.EventWait(at):
            return partial(_wait, _event(context, at))
        case cmd.GraphInit(graph):
            return partial(_ready, context.graph(graph))
        case cmd.GraphExecute():
            return _Execute(context, command)


def _fill(context: EngineContext, at: cmd.MemoryAt, size: int, pattern: bytes) -> Step:
    view = context.view(at, size)
    width = len(pattern)
    if len(set(pattern)) == 1:
        return partial(view.fill, pattern[0])
    if (view.ctypes.data if size else 0) % width:
        # an unaligned pattern: numpy would refuse the wider view on some machines
        return partial(np.copyto, view.reshape(-1, width), np.frombuffer(pattern, dtype=np.uint8))
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[width]
    return partial(view.view(kind).fill, np.frombuffer(pattern, dtype=kind)[0])


def _event(context: EngineContext, at: cmd.MemoryAt) -> Signal:
    memory = context.place(at, SIGNAL_SIZE, 8)
    return Signal(memory.mapping.shared, memory.offset + at.offset)


def _write_time(word: npt.NDArray[np.uint64]) -> None:
    word[0] = time.monotonic_ns()


def _signal(event: Signal, engine: Engine) -> None:
    event.device_signal(0)
    engine.retry_blocked()


def _wait(event: Signal) -> object:
    return None if event.signalled else BLOCKED


def _ready(image: EngineImage) -> object:
    if image.fault is not None:
        raise Refused(image.fault)
    return LOADING if image.loaded is None else None


class _Execute:
    """One inference. It binds its infer request when it first runs with the image on the device."""

    __slots__ = ("_command", "_context", "_image", "_run")

    def __init__(self, context: EngineContext, command: cmd.GraphExecute) -> None:
        self._context = context
        self._command = command
        self._image = context.graph(command.graph)
        self._run: Callable[[], None] | None = None
        if self._image.loaded is not None:
            self._bind(self._image.loaded)

    def __call__(self) -> object:
        if self._run is None:
            if _ready(self._image) is LOADING:
                return LOADING
            assert self._image.loaded is not None
            self._bind(self._image.loaded)
        assert self._run is not None
        self._run()
        return None

    def _bind(self, image: LoadedImage) -> None:
        meta = image.meta
        places = self._command.arguments
        if len(places) != len(meta.arguments):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{meta.name}'",
                f"{len(places)} arguments",
                f"{len(meta.arguments)}: {', '.join(argument.name for argument in meta.arguments)}",
            )
        views = []
        for at, argument in zip(places, meta.arguments, strict=True):
            try:
                views.append(self._context.view(at, argument.byte_size, argument.alignment))
            except Refused as error:
                fault = error.fault
                name = f"graph '{meta.name}', argument '{argument.name}', {fault.object}"
                raise refuse(ZeResult(fault.result), name, fault.found, fault.expected, fault.hint) from error
        self._run = image.bind(views).run


def _numbered(error: Refused, number: int, command: cmd.Command) -> Refused:
    fault = error.fault
    return refuse(
        ZeResult(fault.result),
        f"command {number} ({type(command).__name__}), {fault.object}",
        fault.found,
        fault.expected,
        fault.hint,
    )
