"""Fences: what they tell, when, to how many, and for how long one may wait."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import pytest

from softnpu.driver import CommandQueue, Context, Event, Fence, ZeResult
from softnpu.emulator.interface import records
from tests.support.waiting import Stopwatch, wait_until
from tests.support.work import LONG, SECOND, barrier, execute, failure, recorded, run, waits

_FOREVER = 2**64 - 1


class _Held:
    """A submission that waits for `gate`."""

    def __init__(self, context: Context, queue: CommandQueue) -> None:
        self.gate: Event = context.create_event()
        self.fence: Fence = execute(queue, recorded(context, lambda c: c.append_wait_on_events([self.gate])))

    def end(self) -> None:
        self.gate.host_signal()
        assert self.fence.host_synchronize(LONG)


@pytest.fixture
def held(context: Context, queue: CommandQueue) -> _Held:
    return _Held(context, queue)


@pytest.mark.parametrize("timeout", [0, 1, SECOND, _FOREVER])
def test_a_fence_that_was_never_submitted_is_not_ready_at_once(queue: CommandQueue, timeout: int) -> None:
    watch = Stopwatch()
    fence = queue.create_fence()
    assert not fence.query_status()
    assert not fence.host_synchronize(timeout)
    assert watch.seconds < 0.5


def test_a_fence_may_be_created_signalled(queue: CommandQueue) -> None:
    fence = queue.create_fence(signalled=True)
    assert fence.query_status()
    assert fence.host_synchronize(0)
    fence.reset()
    assert not fence.query_status()


def test_done_stays_done_until_the_reset(context: Context, queue: CommandQueue) -> None:
    fence = execute(queue, barrier(context))
    assert fence.host_synchronize(LONG)
    assert fence.query_status()
    assert fence.host_synchronize(0)

    fence.reset()

    assert not fence.query_status()
    watch = Stopwatch()
    assert not fence.host_synchronize(_FOREVER), "nobody will signal it: not ready at once"
    assert watch.seconds < 1


def test_a_reset_does_not_detach_a_submission(held: _Held) -> None:
    held.fence.reset()
    assert not held.fence.query_status()
    held.end()


def test_a_fence_is_used_again(context: Context, queue: CommandQueue) -> None:
    fence, commands = queue.create_fence(), barrier(context)
    for _ in range(100):
        queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(LONG)


@pytest.mark.parametrize(
    ("timeout", "least", "most"), [(0, 0.0, 0.2), (1, 0.0, 0.2), (SECOND // 10, 0.1, 0.6)]
)
def test_a_time_out_is_kept(held: _Held, timeout: int, least: float, most: float) -> None:
    for wait in (held.fence.host_synchronize, held.fence.queue.synchronize):
        watch = Stopwatch()
        assert not wait(timeout)
        assert least <= watch.seconds < most
    held.end()


def test_only_empty_lists_signal_it_at_once(context: Context, queue: CommandQueue, held: _Held) -> None:
    fence = execute(queue, recorded(context), recorded(context))
    assert fence.query_status(), "although an earlier submission still waits"
    held.end()


def test_the_fence_of_another_queue_is_refused(context: Context, queue: CommandQueue) -> None:
    fence = context.create_command_queue().create_fence()
    failure(
        lambda: queue.execute_command_lists([barrier(context)], fence),
        ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT,
    )


def test_many_threads_wait_for_one_fence(held: _Held) -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(held.fence.host_synchronize(LONG))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    held.gate.host_signal()
    for thread in threads:
        thread.join(20)
    assert results == [True] * 16


def test_a_sleeping_waiter_is_woken(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    # without the wake it would look again after a slice of 50 ms, so the typical delay tells
    monkeypatch.setenv("SOFTNPU_SPIN_US", "0")
    queue, gate = context.create_command_queue(), context.create_event()
    fence, commands = queue.create_fence(), waits(context, gate)
    waiters = fence.block.mapping.words
    mark = (fence.block.offset + fence.offset + records.FENCE_WAITERS) // 4
    delays = []
    for _ in range(31):
        gate.host_reset()
        queue.execute_command_lists([commands], fence)
        waiters[mark] = 0
        waiter = threading.Thread(target=fence.host_synchronize)
        waiter.start()
        wait_until(lambda: waiters[mark], what="the waiter goes to sleep")
        watch = Stopwatch()
        gate.host_signal()
        waiter.join(20)
        delays.append(watch.seconds)
    assert statistics.median(delays) < 0.025


@pytest.mark.parametrize("spin", ["0", "50"])
def test_a_round_trip_takes_no_slice(context: Context, monkeypatch: pytest.MonkeyPatch, spin: str) -> None:
    monkeypatch.setenv("SOFTNPU_SPIN_US", spin)
    queue, commands = context.create_command_queue(), barrier(context)
    run(queue, commands)
    watch = Stopwatch()
    for _ in range(200):
        run(queue, commands)
    assert watch.seconds < 5, "200 missed wakes would take 10 s"


def _fails(context: Context) -> Callable[[CommandQueue], Fence]:
    memory = context.alloc_host(64)

    def submit(queue: CommandQueue) -> Fence:
        return execute(queue, recorded(context, lambda c: c.append_memory_copy(memory, memory, 65)))

    return submit


def test_a_failed_submission_raises_and_the_queue_goes_on(context: Context, queue: CommandQueue) -> None:
    fence = _fails(context)(queue)
    for wait in (fence.host_synchronize, fence.query_status, lambda: fence.host_synchronize(0)):
        error = failure(wait, ZeResult.ERROR_INVALID_ARGUMENT)
        assert "command 0 (Copy)" in error.info.object
        assert "65" in error.info.found
    run(queue, barrier(context))
    assert not queue.lost


def test_each_fence_tells_of_its_own_failure(context: Context, queue: CommandQueue) -> None:
    small, large = context.alloc_host(64), context.alloc_host(128)
    first = execute(queue, recorded(context, lambda c: c.append_memory_copy(small, small, 66)))
    second = execute(queue, recorded(context, lambda c: c.append_memory_copy(large, large, 155)))
    assert "155" in str(failure(lambda: second.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT))
    told = failure(lambda: first.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "155" not in str(told), "that is the other submission's reason"


def test_a_failure_without_a_fence_is_told_by_the_queue_once(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    queue.execute_command_lists([recorded(context, lambda c: c.append_memory_copy(memory, memory, 65))])
    failure(queue.synchronize, ZeResult.ERROR_INVALID_ARGUMENT)
    assert queue.synchronize()


def test_a_failure_that_a_fence_told_of_is_not_told_twice(context: Context, queue: CommandQueue) -> None:
    fence = _fails(context)(queue)
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert queue.synchronize()


def test_a_fence_of_a_destroyed_queue_ends_its_waits(held: _Held) -> None:
    errors: list[object] = []

    def wait() -> None:
        errors.append(failure(held.fence.host_synchronize, ZeResult.ERROR_INVALID_NULL_HANDLE))

    waiter = threading.Thread(target=wait)
    waiter.start()
    held.fence.queue.destroy()
    waiter.join(10)
    assert len(errors) == 1
    failure(held.fence.query_status, ZeResult.ERROR_INVALID_NULL_HANDLE)
