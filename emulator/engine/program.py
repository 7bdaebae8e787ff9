"""Decoded command buffers: a command becomes one ready call, checked once and run many times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine import copies
from softnpu.emulator.engine.context import Bytes, EngineContext
from softnpu.emulator.engine.copies import PART_BYTES, OverlappingCopy, OverlappingRegions
from softnpu.emulator.engine.hazards import Hazards
from softnpu.emulator.engine.inference import Inference, ready
from softnpu.emulator.engine.steps import BLOCKED, Step, Turn
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import EventRecord

if TYPE_CHECKING:
    from softnpu.emulator.engine.engine import Engine
    from softnpu.emulator.engine.images import EngineImage

_CLOCK_EVERY = 255  # mask of command numbers


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of one command buffer, valid for these bytes while every handle in `uses` lives.

    `noted`: whether it is noted after each step how far it came, because the next must not be done twice,
    overwrites what was read, or takes long. `tiles`: the most that one of its inferences occupies.
    `complete`: False if that may be less than it says, because a graph is still being loaded. `inference`:
    its only step, if that is one.
    """

    data: bytes
    uses: frozenset[int]
    steps: tuple[Step, ...]
    commands: int
    inferences: int
    noted: bool
    tiles: int = 0
    complete: bool = True
    inference: Inference | None = None


class Decoding:
    """Checks every command of a buffer (a private copy) against the context before any of them runs.

    In parts: 16 MiB may hold two million commands, which takes seconds.
    """

    def __init__(self, data: bytes, context: EngineContext, engine: Engine, turn: Turn) -> None:
        self._data = data
        self._context = context
        self._engine = engine
        self._turn = turn
        self._commands = enumerate(cmd.decode_each(data))
        self._steps: list[Step] = []
        self._uses: set[int] = set()
        self._count = self._inferences = self._tiles = 0
        self._events = self._effects = False
        self._hazards = Hazards()
        self._complete = True

    def advance(self, until_ns: int) -> Program | None:
        """The program, or None if there is more to do at this time; raises `Refused` at a bad command."""
        for number, command in self._commands:
            if command is not None:
                self._add(number, command)
            if not number & _CLOCK_EVERY and number and time.monotonic_ns() >= until_ns:
                return None
        steps = tuple(self._steps)
        once = self._events or self._effects or self._hazards.found
        noted = len(steps) > 1 and (once or self._inferences > 0)
        only = steps[0] if len(steps) == 1 else None
        return Program(
            data=self._data,
            uses=frozenset(self._uses),
            steps=steps,
            commands=self._count,
            inferences=self._inferences,
            noted=noted,
            tiles=self._tiles,
            complete=self._complete,
            inference=only if isinstance(only, Inference) else None,
        )

    def _add(self, number: int, command: cmd.Command) -> None:
        self._count += 1
        self._hazards.begin(len(self._steps))
        try:
            step = self._step(command)
        except Refused as error:
            raise _numbered(error, number, command) from error
        if step is not None:
            self._steps.append(step)
        self._uses.update(cmd.handles(command))
        if isinstance(command, cmd.GraphExecute):
            self._inferences += 1
            self._occupy(self._context.graph(command.graph))
        self._events |= isinstance(command, cmd.EventSignal | cmd.EventReset | cmd.EventWait)
        self._effects |= isinstance(step, OverlappingCopy | OverlappingRegions)

    def _step(self, command: cmd.Command) -> Step | None:
        context, hazards = self._context, self._hazards
        match command:
            case cmd.Barrier():
                return None  # commands of a queue run one after the other: there is nothing to wait for
            case cmd.Fill(at, size, pattern):
                if hazards.any:
                    hazards.write(*context.place(at, size).range(at.offset, size))
                return _fill(context, at, size, pattern)
            case cmd.Copy():
                return copies.copy(context, self._turn, hazards, command)
            case cmd.Timestamp(at):
                if hazards.any:
                    hazards.write(*context.place(at, 8).range(at.offset, 8))
                word = context.view(at, 8, 8).view(np.uint64)
                return partial(_write_time, word, self._engine.ns_per_tick)
            case cmd.EventSignal(at):
                return partial(_signal, _event(context, at), at, self._engine, self._turn)
            case cmd.EventReset(at):
                return partial(_reset, _event(context, at), at, self._turn)
            case cmd.EventWait(at):
                return partial(_wait, _event(context, at))
            case cmd.GraphInit(graph):
                return partial(ready, context.graph(graph))
            case cmd.GraphExecute():
                return Inference(context, command, self._turn)
            case cmd.CopyRegion():
                return copies.copy_region(context, self._turn, hazards, command)

    def _occupy(self, image: EngineImage) -> None:
        most = self._engine.tiles
        if image.loaded is None:
            self._complete, self._tiles = False, most
            return
        asked = image.loaded.meta.config.get("NPU_TILES", "")
        self._tiles = max(self._tiles, min(most, int(asked)) if asked.isdigit() and int(asked) else most)


def _fill(context: EngineContext, at: cmd.MemoryAt, size: int, pattern: bytes) -> Step:
    view = context.view(at, size)
    if size > PART_BYTES:
        return partial(_fill_in_parts, view, pattern)
    return _fill_view(view, pattern)


def _fill_view(view: Bytes, pattern: bytes) -> Step:
    width = len(pattern)
    if len(set(pattern)) == 1:
        return partial(view.fill, pattern[0])
    if (view.ctypes.data if view.size else 0) % width:
        # an unaligned pattern: numpy would refuse the wider view on some machines
        return partial(np.copyto, view.reshape(-1, width), np.frombuffer(pattern, dtype=np.uint8))
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[width]
    return partial(view.view(kind).fill, np.frombuffer(pattern, dtype=kind)[0])


def _fill_in_parts(view: Bytes, pattern: bytes) -> Iterator[None]:
    for start in range(0, view.size, PART_BYTES):
        _fill_view(view[start : start + PART_BYTES], pattern)()
        yield


def _event(context: EngineContext, at: cmd.MemoryAt) -> EventRecord:
    memory = context.place(at, SIGNAL_SIZE, 8)
    return EventRecord(memory.mapping.shared, memory.offset + at.offset)


def _write_time(word: npt.NDArray[np.uint64], ns_per_tick: float) -> None:
    word[0] = int(time.monotonic_ns() / ns_per_tick)


def _signal(event: EventRecord, at: cmd.MemoryAt, engine: Engine, turn: Turn) -> None:
    turn.note_event(at, event.changes)
    event.device_signal()
    if failpoints.active is not None:
        failpoints.hit("engine.event")
    engine.retry_blocked()


def _reset(event: EventRecord, at: cmd.MemoryAt, turn: Turn) -> None:
    turn.note_event(at, event.changes)
    event.device_reset()
    if failpoints.active is not None:
        failpoints.hit("engine.event")


def _wait(event: EventRecord) -> object:
    return None if event.signalled else BLOCKED


def _numbered(error: Refused, number: int, command: cmd.Command) -> Refused:
    info = error.info
    return refuse(
        ZeResult(info.result),
        f"command {number} ({type(command).__name__}), {info.object}",
        found=info.found,
        expected=info.expected,
        hint=info.hint,
    )
