"""What a ring and a fence record hold at one moment: for those who look for the reason of a wrong result.

Nothing here changes anything. The words are read one after the other, while the device may write them.
"""

from __future__ import annotations

import struct
from mmap import mmap

import msgspec

from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.result import ErrorInfo

_LISTED = 16
_LONG, _WORD = struct.Struct("=Q"), struct.Struct("=I")
_FENCE = struct.Struct("=QIIQQQ")
"""The words of a fence record, in the order of `records`."""


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """One submission in its slot: handles of command buffer and fence, ticket, and the result if it ended."""

    sequence: int
    buffer: int
    fence: int
    fence_offset: int
    ticket: int
    result: int


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A ring: how many submissions were made and have ended, and how the last that failed did.

    `submitted` is the driver's own count, `tail` the one in the ring. `slots` has what is in flight and what
    ended last, at most 16.
    """

    handle: int
    submitted: int
    tail: int
    completed: int
    waiters: int
    asleep: bool
    lost: bool
    failed: int
    result: int
    info: str
    slots: list[SlotState]


class FenceState(msgspec.Struct, frozen=True, kw_only=True):
    """A fence: where its record lies, what it was given to, and the words of the record.

    `ticket`, `first` and `last` are those of its last execution. `time_ns` is CLOCK_MONOTONIC.
    """

    queue: int
    memory: int
    offset: int
    ticket: int
    first: int
    last: int
    signalled: int
    armed: int
    cancel: int
    result: int
    waiters: int
    time_ns: int


def describe_ring(handle: int, submitted: int, buffer: mmap, start: int, slots: int) -> QueueState:
    """The ring at byte `start` of a mapping."""

    def long(at: int) -> int:
        return int(_LONG.unpack_from(buffer, start + at)[0])

    def word(at: int) -> int:
        return int(_WORD.unpack_from(buffer, start + at)[0])

    completed = long(records.RING_COMPLETED)
    last = min(submitted, completed + _LISTED // 2)
    first = max(1, last - min(_LISTED, slots) + 1)
    return QueueState(
        handle=handle,
        submitted=submitted,
        tail=long(records.RING_TAIL),
        completed=completed,
        waiters=word(records.RING_WAITERS),
        asleep=bool(word(records.RING_ASLEEP)),
        lost=bool(word(records.RING_LOST)),
        failed=long(records.RING_FAILED),
        result=word(records.RING_RESULT),
        info=_fault(buffer, start, word(records.RING_TEXT_SIZE)),
        slots=[_slot(buffer, start, (number - 1) & (slots - 1)) for number in range(first, last + 1)],
    )


def describe_fence(
    queue: int, memory: int, offset: int, buffer: mmap, start: int, execution: tuple[int, int, int]
) -> FenceState:
    """The record at byte `start` of a mapping; `execution` is its ticket, first and last submission."""
    signalled, waiters, result, armed, cancel, time_ns = _FENCE.unpack_from(buffer, start)
    ticket, first, last = execution
    return FenceState(
        queue=queue,
        memory=memory,
        offset=offset,
        ticket=ticket,
        first=first,
        last=last,
        signalled=signalled,
        armed=armed,
        cancel=cancel,
        result=result,
        waiters=waiters,
        time_ns=time_ns,
    )


def _slot(buffer: mmap, start: int, place: int) -> SlotState:
    at = start + records.RING_HEADER + place * records.SLOT_SIZE
    sequence, commands, _, _, _, fence, fence_offset, ticket, result, _ = SLOT.unpack_from(buffer, at)
    return SlotState(
        sequence=sequence,
        buffer=commands,
        fence=fence,
        fence_offset=fence_offset,
        ticket=ticket,
        result=result,
    )


def _fault(buffer: mmap, start: int, size: int) -> str:
    text = start + records.RING_TEXT
    raw = buffer[text : text + min(size, records.RING_TEXT_MAX)]
    try:
        return str(msgspec.msgpack.decode(raw, type=ErrorInfo)) if raw else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.hex()
