"""`describe` of queues and fences: the words of their records, for those who look for a reason."""

from __future__ import annotations

import pytest

from softnpu.driver import CommandQueue, Context, ZeError, ZeResult
from tests.support.work import LONG, barrier, execute, failure, waits


def test_a_queue_tells_what_is_in_flight(context: Context, queue: CommandQueue) -> None:
    gate = context.create_event()
    assert execute(queue, barrier(context)).host_synchronize(LONG)
    held = execute(queue, waits(context, gate))
    state = queue.describe()
    assert (state.handle, state.submitted, state.tail, state.completed) == (queue.handle, 2, 2, 1)
    assert not state.lost
    ended, waiting = state.slots
    assert (ended.sequence, waiting.sequence) == (1, 2)
    fence = held.describe()
    assert (fence.queue, fence.first, fence.last) == (queue.handle, 2, 2)
    assert fence.ticket == fence.armed == waiting.ticket != fence.signalled
    assert (fence.memory, fence.offset) == (waiting.fence, waiting.fence_offset)
    gate.host_signal()
    assert held.host_synchronize(LONG)
    later = held.describe()
    assert (later.signalled, later.result) == (later.ticket, 0)
    assert later.time_ns > 0


def test_a_queue_tells_how_its_last_failure_ended(context: Context, queue: CommandQueue) -> None:
    held = execute(queue, waits(context, context.create_event()))
    held.cancel()
    failure(lambda: held.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert queue.synchronize(LONG)
    state = queue.describe()
    assert (state.failed, state.result) == (1, ZeResult.ERROR_NOT_AVAILABLE)
    assert state.slots[0].result == held.describe().result == state.result
    assert "cancelled before it was done" in state.info
    assert held.describe().cancel == held.describe().ticket


def test_only_the_last_slots_are_listed(context: Context) -> None:
    queue = context.create_command_queue(slots=64)
    for _ in range(40):
        execute(queue, barrier(context))
    assert queue.synchronize(LONG)
    assert [slot.sequence for slot in queue.describe().slots] == list(range(25, 41))


def test_what_is_destroyed_is_not_described(queue: CommandQueue) -> None:
    fence = queue.create_fence()
    fence.destroy()
    queue.destroy()
    for handle in (queue, fence):
        with pytest.raises(ZeError, match="INVALID_NULL_HANDLE"):
            handle.describe()
