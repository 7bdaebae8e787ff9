"""Queues: order, wrap-around, full rings, many threads, many processes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from softnpu.driver import CommandQueue, Context, Driver, Fence, ZeResult
from tests.conftest import StartPython
from tests.support.daemon import Daemon
from tests.support.work import LONG, barrier, copy, execute, failure, fill, recorded, run, stamp, waits


@pytest.mark.parametrize("slots", [2, 4, 256])
def test_a_thousand_submissions_wrap_around(context: Context, slots: int) -> None:
    queue = context.create_command_queue(slots=slots)
    counter = context.alloc_host(8000)
    view = counter.view(np.uint64)
    lists = [copy(context, view[at + 1 :], view[at:], 8) for at in range(999)]
    view[:] = 0
    view[0] = 77
    for commands in lists:
        queue.execute_command_lists([commands])
    assert queue.synchronize(LONG)
    assert np.all(view == 77), "each submission copied what the one before it had written"


def test_several_lists_of_one_submission_run_in_order(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    lists = [fill(context, memory, value) for value in range(1, 9)]
    run(queue, *lists)
    assert np.all(memory.view() == 8)


def test_no_lists_are_refused(queue: CommandQueue) -> None:
    failure(lambda: queue.execute_command_lists([]), ZeResult.ERROR_INVALID_SIZE)


def test_more_lists_than_slots_are_refused(context: Context) -> None:
    queue = context.create_command_queue(slots=2)
    error = failure(lambda: queue.execute_command_lists([barrier(context)] * 3), ZeResult.ERROR_INVALID_SIZE)
    assert "2 slots" in error.info.expected
    run(queue, barrier(context), barrier(context))


def test_nothing_submitted_is_done(queue: CommandQueue) -> None:
    assert queue.synchronize(0)


def test_a_queue_that_waits_does_not_hold_up_another(context: Context) -> None:
    gate = context.create_event()
    first, second = context.create_command_queue(), context.create_command_queue()
    held = execute(first, recorded(context, lambda c: c.append_wait_on_events([gate])))
    run(second, barrier(context))
    assert not held.query_status()
    gate.host_signal()
    assert held.host_synchronize(LONG)


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


@pytest.mark.parametrize("priority", ["urgent", ""])
def test_an_unknown_priority_is_refused(context: Context, priority: str) -> None:
    failure(lambda: context.create_command_queue(priority), ZeResult.ERROR_INVALID_ENUMERATION)


@pytest.mark.parametrize("slots", [0, 1, 3, 1 << 20])
def test_an_impossible_size_is_refused(context: Context, slots: int) -> None:
    failure(lambda: context.create_command_queue(slots=slots), ZeResult.ERROR_INVALID_SIZE)


def test_a_destroyed_queue_drops_what_has_not_run(context: Context) -> None:
    gate, memory = context.create_event(), context.alloc_host(64)
    queue = context.create_command_queue()
    wait = recorded(context, lambda c: c.append_wait_on_events([gate]))
    queue.execute_command_lists([wait])
    queue.execute_command_lists([fill(context, memory, 1)])

    queue.destroy()
    gate.host_signal()

    run(context.create_command_queue(), barrier(context))
    assert not memory.view().any()


class _Crowd:
    """Threads that start together; the first exception of one is raised by `join`."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]

    def work(self, number: int) -> None:
        raise NotImplementedError

    def go(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)
        if self._errors:
            raise self._errors[0]

    def _work(self, number: int) -> None:
        try:
            self._barrier.wait(10)
            self.work(number)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._errors.append(error)


@pytest.mark.parametrize("shared", [True, False], ids=["one queue", "own queues"])
def test_eight_threads_submit_at_once(context: Context, shared: bool) -> None:
    common = context.create_command_queue(slots=16)

    class Fillers(_Crowd):
        def work(self, number: int) -> None:
            queue = common if shared else context.create_command_queue(slots=4)
            memory = context.alloc_host(4096)
            fence = queue.create_fence()
            for turn in range(60):
                value = (number * 31 + turn) % 256
                commands = context.create_command_list()
                commands.append_memory_fill(memory, bytes([value]), 4096)
                commands.close()
                queue.execute_command_lists([commands], fence)
                assert fence.host_synchronize(LONG)
                assert np.all(memory.view() == value)

    Fillers(8).go()


def test_threads_create_and_destroy_everything_at_once(context: Context) -> None:
    class Makers(_Crowd):
        def work(self, number: int) -> None:
            for _ in range(15):
                with context.create_command_queue(slots=2) as queue, context.create_event() as event:
                    memory = context.alloc_shared(1000 + number)
                    commands = recorded(context, lambda c: c.append_signal_event(event))
                    run(queue, commands)
                    assert event.query_status()
                    memory.destroy()

    Makers(8).go()


def test_threads_wait_for_different_submissions_of_one_queue(context: Context) -> None:
    queue = context.create_command_queue()
    gates = [context.create_event() for _ in range(8)]
    fences: list[Fence] = [execute(queue, waits(context, gate)) for gate in gates]

    class Waiters(_Crowd):
        def work(self, number: int) -> None:
            gates[number].host_signal()
            assert fences[number].host_synchronize(LONG)
            assert queue.synchronize(LONG)

    Waiters(8).go()


_CLIENT = """
    with Driver.open(Path(given["socket"])) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue(slots=8)
        memory = context.alloc_host(1 << 16)
        fence = queue.create_fence()
        say("ready"); hear()
        for turn in range(200):
            value = (given["number"] * 50 + turn) % 256
            commands = context.create_command_list()
            commands.append_memory_fill(memory, bytes([value]), memory.size)
            commands.close()
            queue.execute_command_lists([commands], fence)
            assert fence.host_synchronize(20 * 10**9)
            assert np.all(memory.view() == value), "another process wrote here"
        say("done")
"""


def test_several_processes_submit_at_once(daemon: Daemon, start_python: StartPython) -> None:
    clients = [start_python(_CLIENT, socket=str(daemon.socket), number=number) for number in range(4)]
    for client in clients:
        assert client.hear() == "ready"
    for client in clients:
        client.tell()
    for client in clients:
        assert client.hear() == "done"
        client.finish()


def test_a_busy_queue_leaves_time_for_another_of_its_context(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(1 << 24)
    big = recorded(context, *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * 4)
    fences = [execute(queue, big) for _ in range(100)]

    run(context.create_command_queue(), barrier(context))

    assert not fences[-1].query_status(), "it did not have to wait for all that came before it"
    assert fences[-1].host_synchronize(LONG)


def test_a_session_that_has_worked_before_is_not_made_to_wait_for_a_new_one(
    daemon: Daemon, context: Context, queue: CommandQueue
) -> None:
    memory = context.alloc_host(1 << 24)
    run(queue, *[recorded(context, lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24))] * 100)
    with Driver.open(daemon.socket) as other:
        new = other.devices[0].create_context()
        crowd, more = new.create_command_queue(), new.alloc_host(1 << 24)
        start, late, mine = new.create_event(), new.alloc_host(64), context.alloc_host(64)
        commands = fill(new, more, 2)
        execute(crowd, waits(new, start))
        fences = [execute(crowd, commands) for _ in range(50)]
        fences += [execute(crowd, stamp(new, late)), *(execute(crowd, commands) for _ in range(50))]
        start.host_signal()
        run(queue, stamp(context, mine))
        assert fences[-1].host_synchronize(LONG)
        assert mine.view(np.uint64)[0] < late.view(np.uint64)[0], "what it had done before is held against it"


def test_a_busy_session_leaves_time_for_another(
    daemon: Daemon, context: Context, queue: CommandQueue
) -> None:
    memory = context.alloc_host(1 << 24)
    big = recorded(context, *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * 4)
    fences = [execute(queue, big) for _ in range(100)]
    with Driver.open(daemon.socket) as other:
        small = other.devices[0].create_context()
        run(small.create_command_queue(), barrier(small))
        assert not fences[-1].query_status(), "it did not have to wait for all that came before it"
    assert fences[-1].host_synchronize(LONG)
