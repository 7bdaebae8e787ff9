"""Submissions: how they end, what is in flight, order, and the watchdog of waits."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from softnpu.driver import (
    CommandList,
    CommandQueue,
    Context,
    Driver,
    Fence,
    ZeError,
    ZeResult,
    command_queue,
    submissions,
    submit_calls,
    waiting,
)
from softnpu.emulator.interface.shared import FenceRecord
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import (
    LONG,
    barrier,
    copy,
    execute,
    failure,
    fill,
    recorded,
    run,
    stamp,
    waits,
)

pytestmark = pytest.mark.quick


@pytest.fixture(params=["in C++", "in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit and wait in both ways: without its part in C++ the driver does the same in Python."""
    assert submit_calls.CALLS is not None
    if request.param == "in Python":
        for module in (command_queue, submissions):
            monkeypatch.setattr(module, "CALLS", None)


# ------------------------------------------------------------ how they end


@pytest.mark.usefixtures("way")
def test_each_fence_reports_its_own_failure_and_the_queue_continues(
    context: Context, queue: CommandQueue
) -> None:
    memory = context.alloc_host(64)

    def submit(size: int) -> Fence:
        return execute(queue, recorded(context, lambda c: c.append_memory_copy(memory, memory, size)))

    fence = submit(65)
    for wait in (fence.host_synchronize, fence.query_status, lambda: fence.host_synchronize(0)):
        error = failure(wait, ZeResult.ERROR_INVALID_ARGUMENT)
        assert "command 0 (Copy)" in error.info.object
        assert "65" in error.info.found
    first, second = submit(66), submit(155)
    assert "155" in str(failure(lambda: second.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT))
    told = failure(lambda: first.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "155" not in str(told), "that is the other submission's reason"
    run(queue, barrier(context))
    assert not queue.lost


@pytest.mark.usefixtures("way")
def test_a_fence_of_a_destroyed_queue_ends_its_waits(context: Context, queue: CommandQueue) -> None:
    fence = execute(queue, waits(context, context.create_event()))
    errors: list[object] = []

    def wait() -> None:
        errors.append(failure(fence.host_synchronize, ZeResult.ERROR_INVALID_NULL_HANDLE))

    waiter = threading.Thread(target=wait)
    waiter.start()
    queue.destroy()
    waiter.join(10)
    assert len(errors) == 1
    failure(fence.query_status, ZeResult.ERROR_INVALID_NULL_HANDLE)


def test_what_ended_work_holds_is_released_with_the_next_other_list(
    context: Context, queue: CommandQueue
) -> None:
    first, second = barrier(context), barrier(context)
    recording = weakref.ref(first._recording)
    for _ in range(100):
        _run_and_count(queue, first)
    assert len(queue._in_flight) < 50  # a ring has 256 slots
    del first
    run(queue, second)
    assert recording() is None


@pytest.mark.parametrize("together", [False, True])
def test_what_ended_work_holds_is_released_though_the_same_list_surrounds_it(
    context: Context, queue: CommandQueue, together: bool
) -> None:
    gate = context.create_event()
    same, other = waits(context, gate), barrier(context)
    recording = weakref.ref(other._recording)
    if together:  # in flight at the same time
        queue.execute_command_lists([same])
        queue.execute_command_lists([other])
        queue.execute_command_lists([same])
        gate.host_signal()
        _run_and_count(queue, same)
        del other
        run(queue, same)
    else:  # in one call, and another one follows the next time
        gate.host_signal()
        _run_and_count(queue, same, other)
        del other
        run(queue, same, barrier(context))
    assert recording() is None


def _run_and_count(queue: CommandQueue, *lists: CommandList) -> None:
    """Run these lists; the device counts them as ended, which it does after it has signalled their fence."""
    run(queue, *lists)
    wait_until(lambda: queue.describe().completed == queue._tail)


@pytest.mark.usefixtures("way")
def test_a_time_out_may_be_a_fraction(context: Context, queue: CommandQueue) -> None:
    gate, fraction = context.create_event(), cast(int, 1e6 + 0.5)
    fence = execute(queue, waits(context, gate))
    assert not fence.host_synchronize(fraction)
    assert not queue.synchronize(fraction)
    assert not gate.host_synchronize(fraction)
    gate.host_signal()


@pytest.mark.usefixtures("way")
def test_a_sleeping_waiter_is_woken(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the end of a slice: those of this test are longer than it."""
    monkeypatch.setenv("SOFTNPU_SPIN_US", "0")
    monkeypatch.setattr(waiting, "_SLICE_NS", 60_000_000_000)
    queue, gate = context.create_command_queue(), context.create_event()
    fence = execute(queue, waits(context, gate))
    waiter = threading.Thread(target=fence.host_synchronize)
    waiter.start()
    wait_until(lambda: fence.describe().waiters, what="the waiter has marked itself")
    gate.host_signal()
    waiter.join(20)
    assert not waiter.is_alive()


@pytest.mark.parametrize("end", ["destroyed", "it lies"])
def test_a_sleeping_waiter_learns_what_else_ends_its_wait(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """At the end of a slice, in C++: Python looks when the test is long over."""
    monkeypatch.setattr(submissions, "_LONGEST_SLEEP_NS", 60_000_000_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        fence = execute(queue, waits(context, context.create_event()))
        with ThreadPoolExecutor(1) as threads:
            waiter = threads.submit(fence.host_synchronize)
            wait_until(lambda: fence.describe().waiters, what="the waiter has marked itself")
            if end == "destroyed":
                queue.destroy()
            else:
                driver._connection.protocol_error("test", end)
            with pytest.raises(ZeError, match=end):
                waiter.result(20)


def test_a_failure_is_reported_even_if_its_slot_is_freed_during_the_check(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, never = context.create_command_queue(slots=2), context.create_event()
    fence = execute(queue, waits(context, never))
    queue.execute_command_lists([barrier(context)])
    read = queue._results.read

    def read_and_end(completed: int) -> None:
        read(completed)
        fence.cancel()
        wait_until(lambda: queue.describe().completed >= 2)

    with monkeypatch.context() as patch:
        patch.setattr(queue._results, "read", read_and_end)
        queue.execute_command_lists([barrier(context)])  # in the slot of the first one

    failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)


class _ArmedAgain:
    """A fence record that is given to another submission, which ends, before its result is read."""

    def __init__(self, record: FenceRecord, arm: Callable[[], None]) -> None:
        self._record = record
        self._arm = arm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    @property
    def result(self) -> int:
        self._arm()
        return self._record.result


def test_a_fence_does_not_report_the_result_of_a_later_submission(context: Context) -> None:
    queue = context.create_command_queue()
    short, long = context.alloc_host(64), context.alloc_host(4096)
    fence = execute(queue, copy(context, long, short, 4096))
    wait_until(lambda: queue.describe().completed >= 1)

    def arm() -> None:
        queue.execute_command_lists([barrier(context)], fence)
        wait_until(lambda: queue.describe().completed >= 2)

    fence._record = cast(FenceRecord, _ArmedAgain(fence._record, arm))

    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)


# ------------------------------------------------------------ snapshots


def test_a_queue_reports_what_is_in_flight(context: Context, queue: CommandQueue) -> None:
    gate = context.create_event()
    assert execute(queue, barrier(context)).host_synchronize(LONG)
    held = execute(queue, waits(context, gate))
    wait_until(lambda: queue.describe().completed == 1, what="the count of what has signalled its fence")
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


def test_a_queue_reports_how_its_last_failure_ended(context: Context, queue: CommandQueue) -> None:
    held = execute(queue, waits(context, context.create_event()))
    held.cancel()
    failure(lambda: held.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert queue.synchronize(LONG)
    state = queue.describe()
    assert (state.failed, state.result) == (1, ZeResult.ERROR_NOT_AVAILABLE)
    assert state.slots[0].result == held.describe().result == state.result
    assert "cancelled before it was done" in state.info
    assert held.describe().cancel == held.describe().ticket


# ------------------------------------------------------------ commands


def test_a_random_program_equals_numpy(context: Context, queue: CommandQueue) -> None:
    chance, size = random.Random(7), 5000
    memory = context.alloc_host(size)
    memory.view()[:] = np.random.default_rng(7).integers(0, 256, size, np.uint8)
    expected = memory.view().copy()
    commands = context.create_command_list()
    for _ in range(300):
        length = chance.randint(0, 800) & ~3
        target, source = (chance.randint(0, size - length) for _ in range(2))
        if chance.random() < 0.5:
            commands.append_memory_copy(memory.address + target, memory.address + source, length)
            expected[target : target + length] = expected[source : source + length].copy()
        else:
            pattern = chance.randbytes(chance.choice([1, 2, 4]))
            commands.append_memory_fill(memory.address + target, pattern, length)
            expected[target : target + length] = np.frombuffer(pattern * (length // len(pattern)), np.uint8)
    commands.close()
    run(queue, commands)
    assert np.array_equal(memory.view(), expected)


def test_unknown_memory_is_refused_when_appended(context: Context) -> None:
    memory, commands = context.alloc_host(64), context.create_command_list()
    foreign = np.zeros(64, np.uint8)
    for place in (foreign, memory.address - 1, memory.address + 64, 4096):
        append = partial(commands.append_memory_copy, memory, place, 1)
        failure(append, ZeResult.ERROR_UNINITIALIZED)
    failure(lambda: commands.append_memory_copy(memory, 0, 1), ZeResult.ERROR_INVALID_NULL_POINTER)
    strided = memory.view()[::2]
    error = failure(lambda: commands.append_memory_copy(memory, strided, 1), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "contiguous" in str(error)


def test_a_submission_is_a_snapshot_on_every_queue(context: Context) -> None:
    gate, memory = context.create_event(), context.alloc_host(64)
    held, free = context.create_command_queue(), context.create_command_queue()
    commands = recorded(context, lambda c: c.append_memory_fill(memory, b"\1", 32))
    waits = recorded(context, lambda c: c.append_wait_on_events([gate]))
    held.execute_command_lists([waits])
    fence = execute(held, commands)
    run(free, commands)
    memory.view()[:] = 0

    commands.reset()
    commands.append_memory_fill(memory.address + 32, b"\2", 32)
    commands.close()
    gate.host_signal()

    assert fence.host_synchronize(LONG)
    assert np.all(memory.view()[:32] == 1), "the first queue had the first recording in flight"
    assert not memory.view()[32:].any()


# ------------------------------------------------------------ order


def test_a_queue_has_a_power_of_two_of_slots(context: Context) -> None:
    for slots in (0, 1, 3, 1 << 20):
        failure(lambda: context.create_command_queue(slots=slots), ZeResult.ERROR_INVALID_SIZE)  # noqa: B023


def test_submissions_of_a_long_call_are_distinguished_from_other_calls(context: Context) -> None:
    queue, gate = context.create_command_queue(slots=2), context.create_event()
    memory = context.alloc_host(64)
    beyond = recorded(context, lambda c: c.append_memory_copy(memory, memory, 128))
    long, lists = queue.create_fence(), [barrier(context), waits(context, gate), *[barrier(context)] * 5]
    caller = threading.Thread(target=queue.execute_command_lists, args=(lists, long))
    caller.start()
    wait_until(lambda: queue.describe().submitted == 2)
    other = [execute(queue, beyond)]
    gate.host_signal()
    other += [execute(queue, beyond) for _ in range(4)]
    caller.join(10)
    assert long.host_synchronize(LONG)
    for fence in other:
        failure(partial(fence.host_synchronize, LONG), ZeResult.ERROR_INVALID_ARGUMENT)


def test_a_higher_priority_runs_first(context: Context) -> None:
    gate = context.create_event()
    memory = context.alloc_host(64)
    view = memory.view(np.uint64)
    queues = [context.create_command_queue(priority) for priority in ("low", "normal", "high")]
    fences = []
    for number, queue in enumerate(queues):
        fences.append(execute(queue, stamp(context, view[number:], gate)))
    gate.host_signal()
    assert all(fence.host_synchronize(LONG) for fence in fences)
    low, normal, high = (int(value) for value in view[:3])
    assert high <= normal <= low


# ------------------------------------------------------------ threads and processes


def test_eight_threads_submit_to_one_queue_concurrently(context: Context) -> None:
    queue = context.create_command_queue(slots=16)

    def fill_again_and_again(number: int) -> None:
        memory, fence = context.alloc_host(4096), queue.create_fence()
        for turn in range(30):
            value = (number * 31 + turn) % 256
            queue.execute_command_lists([fill(context, memory, value)], fence)
            assert fence.host_synchronize(LONG)
            assert np.all(memory.view() == value)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill_again_and_again, range(8)))


# ------------------------------------------------------------ the watchdog of waits


def test_the_watchdog_restarts_after_progress(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=600)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        gates, seen = ([context.create_event() for _ in range(3)] for _ in range(2))
        commands = context.create_command_list()
        for gate, mark in zip(gates, seen, strict=True):
            commands.append_barrier(mark, [gate])
        commands.close()
        fence = execute(queue, commands)
        for gate, mark in zip(gates, seen, strict=True):
            # each wait is shorter than the limit, together they are longer
            assert not mark.host_synchronize(300_000_000)
            gate.host_signal()
            assert mark.host_synchronize(LONG)
        assert fence.host_synchronize(LONG)
