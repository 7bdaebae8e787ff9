"""COPY and COPY_REGION: long ones in parts, and those whose ranges overlap so that they happen once.

A copy that overwrites its source cannot be begun again. Its data go through staging, which outlives the
engine: staged, noted, copied from there (`staging`). Whether ranges overlap is a matter of the file that they
lie in, and not of addresses: a client may have mapped it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.context import Bytes, EngineContext, Memory
from softnpu.emulator.engine.hazards import Hazards
from softnpu.emulator.engine.staging import Note, moved
from softnpu.emulator.engine.steps import Step, Turn
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.result import ZeResult, refuse

PART_BYTES = 8 * 1024 * 1024
"""Longer copies and fills are done in parts of this size, as the real driver cuts them."""


def copy(context: EngineContext, turn: Turn, hazards: Hazards, command: cmd.Copy) -> Step:
    """COPY: `size` bytes, as if all were read before one is written."""
    target, source, size = command.target, command.source, command.size
    to, origin = context.place(target, size), context.place(source, size)
    written = to.array[target.offset : target.offset + size]
    read = origin.array[source.offset : source.offset + size]
    read_at, write_at = origin.offset + source.offset, to.offset + target.offset
    hazards.write(to.mapping.identity, write_at, write_at + size)
    hazards.read(origin.mapping.identity, read_at, read_at + size)
    if 0 < abs(write_at - read_at) < size and to.mapping.identity == origin.mapping.identity:
        return OverlappingCopy(context, turn, written, read, write_at > read_at)
    if size > PART_BYTES:
        return partial(_copy_in_parts, written, read)
    return partial(np.copyto, written, read)


def copy_region(context: EngineContext, turn: Turn, hazards: Hazards, command: cmd.CopyRegion) -> Step:
    """COPY_REGION: rows, as if all were read before one is written."""
    width, rows = command.width, command.rows
    to, target = _rows(context, command.target, command.target_pitch, width, rows)
    origin, source = _rows(context, command.source, command.source_pitch, width, rows)
    written = to.range(command.target.offset, extent(command.target_pitch, width, rows))
    read = origin.range(command.source.offset, extent(command.source_pitch, width, rows))
    hazards.write(*written)
    hazards.read(*read)
    if written.meets(read):
        shift = (written.start - read.start) % command.target_pitch
        beside = (
            command.target_pitch == command.source_pitch and width <= shift <= command.target_pitch - width
        )
        if not beside:  # other columns of the same rows do not overlap
            return OverlappingRegions(context, turn, target, source)
    if target.size <= PART_BYTES:
        return partial(np.copyto, target, source)
    return partial(_copy_rows_in_parts, target, source)


def extent(pitch: int, width: int, rows: int) -> int:
    """Bytes from the first to the last of rows that start a pitch apart."""
    return pitch * (rows - 1) + width


class OverlappingCopy:
    """A copy of a range onto itself, part by part: from its end if the target lies behind the source."""

    __slots__ = ("_context", "_source", "_starts", "_target", "_turn")

    def __init__(
        self, context: EngineContext, turn: Turn, target: Bytes, source: Bytes, behind: bool
    ) -> None:
        self._context = context
        self._turn = turn
        self._target = target
        self._source = source
        starts = range(0, target.size, PART_BYTES)
        self._starts: Sequence[int] = starts[::-1] if behind else starts

    def __call__(self) -> object:
        parts = self._parts()
        if len(self._starts) > 1:
            return parts
        for _ in parts:
            pass
        return None

    def _parts(self) -> Iterator[None]:
        value = self._turn.pending_effect()
        note = Note(None, 0) if value is None else Note.read(value)
        for number in range(note.number, len(self._starts)):
            start = self._starts[number]
            part = self._target[start : start + PART_BYTES]
            if value is not None and note.piece is not None and number == note.number:
                staged = self._context.staging.find(value, part.size)
            else:
                piece = self._context.scratch(min(self._target.size, PART_BYTES))
                staged = piece.array[: part.size]
                np.copyto(staged, self._source[start : start + PART_BYTES])
                self._turn.note_effect(piece.note(number))
            _deliver(part, staged)
            if len(self._starts) > 1:
                # others may run now, and use the same staging
                self._turn.note_effect(moved(number + 1))
                yield


class OverlappingRegions:
    """A copy of rows that lie between, or in, the rows that are copied: in any order, so all are staged."""

    __slots__ = ("_context", "_source", "_target", "_turn")

    def __init__(self, context: EngineContext, turn: Turn, target: Bytes, source: Bytes) -> None:
        self._context = context
        self._turn = turn
        self._target = target
        self._source = source

    def __call__(self) -> object:
        if self._target.size > PART_BYTES:
            return self._parts()
        value = self._turn.pending_effect()
        if value is not None:
            staged = self._context.staging.find(value, self._target.size)
        else:
            piece = self._context.scratch(self._target.size)
            staged = piece.array[: self._target.size]
            np.copyto(staged.reshape(self._target.shape), self._source)
            self._turn.note_effect(piece.note())
        _deliver(self._target, staged.reshape(self._target.shape))
        return None

    def _parts(self) -> Iterator[None]:
        value = self._turn.pending_effect()
        if value is None:
            piece = self._context.staging.take(self._target.size)
            staged = piece.array[: self._target.size].reshape(self._target.shape)
            yield from _copy_rows_in_parts(staged, self._source)
            self._turn.note_effect(piece.note())
        elif Note.read(value).piece is None:
            return  # all of it is done
        else:
            staged = self._context.staging.find(value, self._target.size).reshape(self._target.shape)
        if failpoints.active is not None:
            failpoints.hit("engine.staged")
        yield from _copy_rows_in_parts(self._target, staged)
        self._turn.note_effect(moved(1))  # the piece ends with this copy
        if failpoints.active is not None:
            failpoints.hit("engine.copied")


def _deliver(target: Bytes, staged: Bytes) -> None:
    if failpoints.active is not None:
        failpoints.hit("engine.staged")
    np.copyto(target, staged)
    if failpoints.active is not None:
        failpoints.hit("engine.copied")


def _copy_in_parts(target: Bytes, source: Bytes) -> Iterator[None]:
    for start in range(0, target.size, PART_BYTES):
        np.copyto(target[start : start + PART_BYTES], source[start : start + PART_BYTES])
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


def _rows(
    context: EngineContext, at: cmd.MemoryAt, pitch: int, width: int, rows: int
) -> tuple[Memory, Bytes]:
    """A view of `rows` rows of `width` bytes that start `pitch` bytes apart, and the allocation."""
    if not 0 < width <= pitch or not rows:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "copy region",
            found=f"{rows} rows of {width} bytes, pitch {pitch}",
            expected="rows, and a width of at most the pitch",
        )
    size = extent(pitch, width, rows)
    memory = context.place(at, size)
    view = memory.array[at.offset : at.offset + size]
    # the pitch of a single row leads nowhere, and may be larger than any address
    steps = (pitch if rows > 1 else width, 1)
    return memory, np.lib.stride_tricks.as_strided(view, (rows, width), steps)
