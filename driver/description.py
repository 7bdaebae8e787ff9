"""Snapshots of a ring and of a fence record, to diagnose wrong results.

Nothing here changes anything. Words are read one by one while the device may write them.
"""

from __future__ import annotations

import struct
from mmap import mmap

import msgspec

from softnpu.emulator.interface.ring import DriverRing

_LISTED = 16
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
    """A ring: counts of submitted and ended submissions, and the result of the last failure.

    `submitted` is the driver's own count, `tail` the one in the ring. `slots` lists submissions in flight and
    the last ended ones, at most 16.
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
    """A fence: the place and words of its record, and the submissions of its last call.

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


def describe_ring(handle: int, submitted: int, ring: DriverRing) -> QueueState:
    """Return a snapshot of a ring."""
    completed = ring.completed
    last = min(submitted, completed + _LISTED // 2)
    first = max(1, last - min(_LISTED, ring.slots) + 1)
    return QueueState(
        handle=handle,
        submitted=submitted,
        tail=ring.tail,
        completed=completed,
        waiters=ring.waiters,
        asleep=ring.is_asleep,
        lost=ring.is_lost,
        failed=ring.failed,
        result=ring.failure_result,
        info=_failure(ring),
        slots=[_slot(ring, sequence) for sequence in range(first, last + 1)],
    )


def describe_fence(
    queue: int, memory: int, offset: int, buffer: mmap, start: int, execution: tuple[int, int, int]
) -> FenceState:
    """Return the record at byte `start` of a mapping; `execution`: its ticket, first and last submission."""
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


def _slot(ring: DriverRing, sequence: int) -> SlotState:
    slot = ring.slot(sequence)
    return SlotState(
        sequence=slot.sequence,
        buffer=slot.buffer,
        fence=slot.fence,
        fence_offset=slot.fence_offset,
        ticket=slot.ticket,
        result=slot.result,
    )


def _failure(ring: DriverRing) -> str:
    info = ring.failure()
    return str(info) if info is not None else ring.failure_text().hex()
