"""COPY and COPY_REGION: long copies run in parts, overlapping ones exactly once.

A copy that overwrites its source cannot restart after an engine reset. Its data go through staging, which
outlives the engine: staged, logged, copied from there (`staging`). Ranges are compared by file rather than by
address, because a client may have mapped a file twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.commands.hazards import Hazards
from softnpu.emulator.engine.commands.running_submission import RunningSubmission
from softnpu.emulator.engine.commands.steps import Parts, Step
from softnpu.emulator.engine.commands.wide_copy import WIDE_BYTES
from softnpu.emulator.engine.commands.wide_copy import copy as wide_copy
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Memory
from softnpu.emulator.engine.memory.staging import LogEntry, moved
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.result import ZeResult, refuse

PART_BYTES = 8 * 1024 * 1024
"""Longer copies and fills are split into parts of this size, as in the real driver."""
_WIDE_PART_BYTES = 4 * PART_BYTES  # two threads need 3 ms


def copy(space: AddressSpace, running: RunningSubmission, hazards: Hazards, command: cmd.Copy) -> Step:
    """COPY: `size` bytes, as if all were read before one is written."""
    target, source, size = command.target, command.source, command.size
    to, origin = space.resolve_target(target, size), space.resolve(source, size)
    written = to.array[target.offset : target.offset + size]
    read = origin.array[source.offset : source.offset + size]
    write_range, read_range = to.range(target.offset, size), origin.range(source.offset, size)
    hazards.write(*write_range)
    hazards.read(*read_range)
    if write_range.start != read_range.start and write_range.overlaps(read_range):
        return OverlappingCopy(space, running, written, read, write_range.start > read_range.start)
    if size > PART_BYTES:
        return partial(_copy_in_parts, written, read)
    return partial(wide_copy if size >= WIDE_BYTES else np.copyto, written, read)


def copy_region(
    space: AddressSpace, running: RunningSubmission, hazards: Hazards, command: cmd.CopyRegion
) -> Step:
    """COPY_REGION: rows, as if all were read before one is written."""
    width, rows = command.width, command.rows
    if not rows or not 0 < width <= command.target_pitch:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "copy region",
            found=f"{rows} rows of {width} bytes, target pitch {command.target_pitch}",
            expected="rows, and a width of at most the target's pitch",
        )
    to, target = _rows(space, command.target, command.target_pitch, width, rows)
    space.resolve_target(command.target, 0)
    origin, source = _rows(space, command.source, command.source_pitch, width, rows)
    written = to.range(command.target.offset, extent(command.target_pitch, width, rows))
    read = origin.range(command.source.offset, extent(command.source_pitch, width, rows))
    hazards.write(*written)
    hazards.read(*read)
    if written.overlaps(read):
        shift = (written.start - read.start) % command.target_pitch
        beside = (
            command.target_pitch == command.source_pitch and width <= shift <= command.target_pitch - width
        )
        if not beside:  # other columns of the same rows do not overlap
            return OverlappingRegions(space, running, target, source)
    if target.size <= PART_BYTES:
        return partial(np.copyto, target, source)
    return partial(_copy_rows_in_parts, target, source)


def extent(pitch: int, width: int, rows: int) -> int:
    """Return the span in bytes of rows that start a pitch apart."""
    return pitch * (rows - 1) + width


class OverlappingCopy:
    """Copies a range onto itself, part by part, from its end if the target lies after the source."""

    __slots__ = ("_running", "_source", "_space", "_starts", "_target")

    def __init__(
        self, space: AddressSpace, running: RunningSubmission, target: Bytes, source: Bytes, behind: bool
    ) -> None:
        self._space = space
        self._running = running
        self._target = target
        self._source = source
        starts = range(0, target.size, PART_BYTES)
        self._starts: Sequence[int] = starts[::-1] if behind else starts

    def __call__(self) -> Parts | None:
        parts = self._parts()
        if len(self._starts) > 1:
            return parts
        for _ in parts:
            pass
        return None

    def _parts(self) -> Iterator[None]:
        value = self._running.queue.pending_intent()
        entry = LogEntry(None, 0) if value is None else LogEntry.read(value)
        for number in range(entry.number, len(self._starts)):
            start = self._starts[number]
            part = self._target[start : start + PART_BYTES]
            if value is not None and entry.page is not None and number == entry.number:
                staged = self._space.staging.find(value, part.size)
            else:
                buffer = self._space.scratch(min(self._target.size, PART_BYTES))
                staged = buffer.array[: part.size]
                np.copyto(staged, self._source[start : start + PART_BYTES])
                self._running.queue.log_intent(buffer.entry(number))
            _deliver(part, staged)
            if len(self._starts) > 1:
                # others may run now and use the same staging
                self._running.queue.log_intent(moved(number + 1))
                yield


class OverlappingRegions:
    """Copies rows to overlapping rows: no order of copying is safe, so all are staged."""

    __slots__ = ("_running", "_source", "_space", "_target")

    def __init__(self, space: AddressSpace, running: RunningSubmission, target: Bytes, source: Bytes) -> None:
        self._space = space
        self._running = running
        self._target = target
        self._source = source

    def __call__(self) -> Parts | None:
        if self._target.size > PART_BYTES:
            return self._parts()
        value = self._running.queue.pending_intent()
        if value is not None:
            staged = self._space.staging.find(value, self._target.size)
        else:
            buffer = self._space.scratch(self._target.size)
            staged = buffer.array[: self._target.size]
            np.copyto(staged.reshape(self._target.shape), self._source)
            self._running.queue.log_intent(buffer.entry())
        _deliver(self._target, staged.reshape(self._target.shape))
        return None

    def _parts(self) -> Iterator[None]:
        value = self._running.queue.pending_intent()
        if value is None:
            buffer = self._space.take_staging(self._target.size)
            staged = buffer.array[: self._target.size].reshape(self._target.shape)
            yield from _copy_rows_in_parts(staged, self._source)
            self._running.queue.log_intent(buffer.entry())
        elif LogEntry.read(value).page is None:
            return  # done
        else:
            staged = self._space.staging.find(value, self._target.size).reshape(self._target.shape)
        if failpoints.active is not None:
            failpoints.hit("engine.staged")
        yield from _copy_rows_in_parts(self._target, staged)
        self._running.queue.log_intent(moved(1))  # the buffer is freed with this copy
        if failpoints.active is not None:
            failpoints.hit("engine.copied")


def _deliver(target: Bytes, staged: Bytes) -> None:
    if failpoints.active is not None:
        failpoints.hit("engine.staged")
    np.copyto(target, staged)
    if failpoints.active is not None:
        failpoints.hit("engine.copied")


def _copy_in_parts(target: Bytes, source: Bytes) -> Iterator[None]:
    for start in range(0, target.size, _WIDE_PART_BYTES):
        wide_copy(target[start : start + _WIDE_PART_BYTES], source[start : start + _WIDE_PART_BYTES])
        yield


def _copy_rows_in_parts(target: Bytes, source: Bytes) -> Iterator[None]:
    rows = PART_BYTES // target.shape[1]
    if not rows:
        for number in range(target.shape[0]):
            yield from _copy_in_parts(target[number], source[number])
        return
    for start in range(0, target.shape[0], rows):
        np.copyto(target[start : start + rows], source[start : start + rows])
        yield


def _rows(space: AddressSpace, at: cmd.MemoryAt, pitch: int, width: int, rows: int) -> tuple[Memory, Bytes]:
    """Return the allocation, and a view of `rows` rows of `width` bytes that start `pitch` bytes apart.

    Rows that are only read may overlap.
    """
    size = extent(pitch, width, rows)
    memory = space.resolve(at, size)
    view = memory.array[at.offset : at.offset + size]
    # the pitch of a single row is unused, and may exceed any address
    steps = (pitch if rows > 1 else width, 1)
    return memory, np.lib.stride_tricks.as_strided(view, (rows, width), steps)
