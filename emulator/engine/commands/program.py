"""Decoding of command buffers: each command is checked once and becomes a reusable call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.commands import copies
from softnpu.emulator.engine.commands.copies import PART_BYTES, OverlappingCopy, OverlappingRegions
from softnpu.emulator.engine.commands.hazards import Hazards
from softnpu.emulator.engine.commands.inference import Inference, check_loaded
from softnpu.emulator.engine.commands.modelled_runs import ModelledRuns
from softnpu.emulator.engine.commands.running_submission import RunningSubmission
from softnpu.emulator.engine.commands.steps import EventWait, Step
from softnpu.emulator.engine.counters import Work
from softnpu.emulator.engine.device_clock import tiles_of
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.foreign import ForeignFile
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import metrics
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import EventRecord
from softnpu.emulator.platforms import Platform

if TYPE_CHECKING:
    import numpy.typing as npt

_CLOCK_MASK = 255  # of command numbers


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program:
    """The steps of one command buffer, valid for these bytes while every handle in `uses` lives.

    `journaled`: progress is logged after each step, because a step is unrepeatable, overwrites what was read,
    or takes long. `tiles`: the maximum occupied by one of its inferences. `complete`: False if a graph is
    still being loaded, so that it may occupy fewer. `inference`: its only step, if that is an inference.
    `executions`: all inference steps. `read`, `written`: bytes, without those of graphs still being loaded.
    `foreign`: files that others can truncate and that it reads or writes.
    """

    data: bytes
    uses: frozenset[int]
    steps: tuple[Step, ...]
    commands: int
    inferences: int
    journaled: bool
    tiles: int = 0
    complete: bool = True
    inference: Inference | None = None
    executions: tuple[Inference, ...] = ()
    read: int = 0
    written: int = 0
    foreign: tuple[ForeignFile, ...] = ()


class Decoding:
    """Checks every command of a buffer (a private copy) before any of them runs.

    It works in parts: 16 MiB may hold two million commands, which takes seconds.
    """

    def __init__(
        self, data: bytes, space: AddressSpace, platform: Platform, running: RunningSubmission
    ) -> None:
        self._data = data
        self._space = space
        self._platform = platform
        self._running = running
        self._commands = enumerate(cmd.decode_each(data))
        self._steps: list[Step] = []
        self._uses: set[int] = set()
        self._count = self._inferences = self._tiles = self._read = self._written = 0
        self._events = self._effects = False
        self._hazards = Hazards()
        self._complete = True

    def advance(self, until_ns: int) -> Program | None:
        """Decode until `until_ns`; return the program, or None if unfinished. Raises `Refused`."""
        for number, command in self._commands:
            if command is not None:
                self._add(number, command)
            if not number & _CLOCK_MASK and number and time.monotonic_ns() >= until_ns:
                return None
        steps = tuple(self._steps)
        once = self._events or self._effects or self._hazards.overwritten
        journaled = len(steps) > 1 and (once or self._inferences > 0)
        only = steps[0] if len(steps) == 1 else None
        return Program(
            data=self._data,
            uses=frozenset(self._uses),
            steps=steps,
            commands=self._count,
            inferences=self._inferences,
            journaled=journaled,
            tiles=self._tiles,
            complete=self._complete,
            inference=only if isinstance(only, Inference) else None,
            executions=tuple(step for step in steps if isinstance(step, Inference)),
            read=self._read,
            written=self._written,
            foreign=self._space.foreign_of(self._uses),
        )

    def _add(self, number: int, command: cmd.Command) -> None:
        self._count += not isinstance(command, cmd.MetricSnapshot)  # observers are not counted
        self._hazards.begin(len(self._steps))
        try:
            step = self._step(command)
        except Refused as error:
            raise _numbered(error, number, command) from error
        if step is not None:
            self._steps.append(step)
        modelled = self._running.modelled
        if modelled is not None and isinstance(command, cmd.Copy | cmd.Fill | cmd.CopyRegion):
            self._steps.append(partial(_end_copy, self._running, modelled, _size(command)))
        self._uses.update(cmd.handles(command))
        self._count_traffic(command, step)
        if isinstance(command, cmd.GraphExecute):
            self._inferences += 1
            self._occupy(self._space.graph(command.graph))
        self._events |= isinstance(command, cmd.EventSignal | cmd.EventReset | cmd.EventWait)
        self._effects |= isinstance(step, OverlappingCopy | OverlappingRegions)

    def _step(self, command: cmd.Command) -> Step | None:
        space, running, hazards = self._space, self._running, self._hazards
        match command:
            case cmd.Barrier():
                return None  # commands of a queue run one after the other
            case cmd.Fill(at, size, pattern):
                if hazards.any_reads:
                    hazards.write(*space.resolve(at, size).range(at.offset, size))
                return _fill(space, at, size, pattern)
            case cmd.Copy():
                return copies.copy(space, running, hazards, command)
            case cmd.Timestamp(at):
                if hazards.any_reads:
                    hazards.write(*space.resolve(at, 8).range(at.offset, 8))
                word = space.target(at, 8, 8).view(np.uint64)
                return partial(_write_time, word, self._platform.timer_ns_per_tick, running)
            case cmd.MetricSnapshot(at):
                size = metrics.SNAPSHOT.size
                if hazards.any_reads:
                    hazards.write(*space.resolve(at, size).range(at.offset, size))
                done = Work(self._count, self._inferences, self._read, self._written)
                return partial(running.write_metrics, space.target(at, size, 8).view(np.uint64), done)
            case cmd.EventSignal(at):
                return partial(_signal, *_event(space, at), at, running)
            case cmd.EventReset(at):
                return partial(_reset, _event(space, at)[0], at, running)
            case cmd.EventWait(at):
                return EventWait(*_event(space, at))
            case cmd.GraphInit(graph):
                return partial(check_loaded, space.graph(graph))
            case cmd.GraphExecute():
                return Inference(space, command, running)
            case cmd.CopyRegion():
                return copies.copy_region(space, running, hazards, command)

    def _count_traffic(self, command: cmd.Command, step: Step | None) -> None:
        if isinstance(step, Inference):
            read, written = step.traffic
            self._read += read
            self._written += written
        elif isinstance(command, cmd.Copy | cmd.Fill | cmd.CopyRegion):
            self._read += 0 if isinstance(command, cmd.Fill) else _size(command)
            self._written += _size(command)

    def _occupy(self, image: EngineImage) -> None:
        if image.loaded is None:
            self._complete, self._tiles = False, self._platform.tiles
            return
        self._tiles = max(self._tiles, tiles_of(image.loaded.meta, self._platform))


def _size(command: cmd.Copy | cmd.Fill | cmd.CopyRegion) -> int:
    return command.width * command.rows if isinstance(command, cmd.CopyRegion) else command.size


def _fill(space: AddressSpace, at: cmd.MemoryAt, size: int, pattern: bytes) -> Step:
    view = space.target(at, size)
    if size > PART_BYTES:
        return partial(_fill_in_parts, view, pattern)
    if size % len(pattern):
        return partial(_fill_unevenly, view, pattern)
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


def _fill_unevenly(view: Bytes, pattern: bytes) -> None:
    whole = view.size - view.size % len(pattern)
    _fill_view(view[:whole], pattern)()
    view[whole:] = np.frombuffer(pattern, dtype=np.uint8)[: view.size - whole]


def _fill_in_parts(view: Bytes, pattern: bytes) -> Iterator[None]:
    for start in range(0, view.size, PART_BYTES):
        _fill_unevenly(view[start : start + PART_BYTES], pattern)
        yield


def _event(space: AddressSpace, at: cmd.MemoryAt) -> tuple[EventRecord, Range]:
    space.own_memory(at.memory)
    memory = space.resolve(at, SIGNAL_SIZE, 8)
    record = EventRecord(memory.mapping.shared, memory.offset + at.offset)
    return record, memory.range(at.offset, SIGNAL_SIZE)


def _write_time(word: npt.NDArray[np.uint64], ns_per_tick: float, running: RunningSubmission) -> None:
    now_ns = time.monotonic_ns() if running.modelled is None else running.queue.device_ns
    word[0] = int(now_ns / ns_per_tick)


def _end_copy(running: RunningSubmission, modelled: ModelledRuns, size: int) -> None:
    modelled.end_copy(running.queue, size)


def _signal(event: EventRecord, where: Range, at: cmd.MemoryAt, running: RunningSubmission) -> None:
    running.queue.log_event_intent(at, event.changes)
    event.device_signal()
    if failpoints.active is not None:
        failpoints.hit("engine.event")
    running.signalled(where)


def _reset(event: EventRecord, at: cmd.MemoryAt, running: RunningSubmission) -> None:
    running.queue.log_event_intent(at, event.changes)
    event.device_reset()
    if failpoints.active is not None:
        failpoints.hit("engine.event")


def _numbered(error: Refused, number: int, command: cmd.Command) -> Refused:
    info = error.info
    return refuse(
        ZeResult(info.result),
        f"command {number} ({type(command).__name__}), {info.object}",
        found=info.found,
        expected=info.expected,
        hint=info.hint,
    )
