"""Decoded command buffers: a command becomes one ready call, checked once and run many times."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from softnpu.emulator.engine.context import Bytes, EngineContext
from softnpu.emulator.engine.inference import Inference, ready
from softnpu.emulator.engine.steps import BLOCKED, Step
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import Signal

if TYPE_CHECKING:
    from softnpu.emulator.engine.engine import Engine


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
            return partial(_write_time, context.view(at, 8, 8).view(np.uint64), engine.ns_per_tick)
        case cmd.EventSignal(at):
            return partial(_signal, _event(context, at), engine)
        case cmd.EventReset(at):
            return _event(context, at).device_reset
        case cmd.EventWait(at):
            return partial(_wait, _event(context, at))
        case cmd.GraphInit(graph):
            return partial(ready, context.graph(graph))
        case cmd.GraphExecute():
            return Inference(context, command, engine)
        case cmd.CopyRegion():
            return _copy_region(context, command)


def _copy_region(context: EngineContext, command: cmd.CopyRegion) -> Step:
    target = _rows(context, command.target, command.target_pitch, command.width, command.rows)
    source = _rows(context, command.source, command.source_pitch, command.width, command.rows)
    return partial(np.copyto, target, source)


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


def _rows(context: EngineContext, at: cmd.MemoryAt, pitch: int, width: int, rows: int) -> Bytes:
    """A view of `rows` rows of `width` bytes that start `pitch` bytes apart."""
    if not 0 < width <= pitch or not rows:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "copy region",
            f"{rows} rows of {width} bytes, pitch {pitch}",
            "rows, and a width of at most the pitch",
        )
    view = context.view(at, pitch * (rows - 1) + width)
    return np.lib.stride_tricks.as_strided(view, (rows, width), (pitch, 1))


def _write_time(word: npt.NDArray[np.uint64], ns_per_tick: float) -> None:
    word[0] = int(time.monotonic_ns() / ns_per_tick)


def _signal(event: Signal, engine: Engine) -> None:
    event.device_signal(0)
    engine.retry_blocked()


def _wait(event: Signal) -> object:
    return None if event.signalled else BLOCKED


def _numbered(error: Refused, number: int, command: cmd.Command) -> Refused:
    fault = error.fault
    return refuse(
        ZeResult(fault.result),
        f"command {number} ({type(command).__name__}), {fault.object}",
        fault.found,
        fault.expected,
        fault.hint,
    )
