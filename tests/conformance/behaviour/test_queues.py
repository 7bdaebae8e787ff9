"""Command queues: creation, order, waiting, and the watchdog."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE, QueueMode, QueueOption, QueuePriority, WorkloadType
from tests.conformance.api.structures import Handle
from tests.conformance.commands import signal, wait
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok


def test_queue_of_every_priority_and_option_works(rig: Rig) -> None:
    for priority in QueuePriority:
        rig.check_works(rig.queue(priority=priority))
    for options in (0, QueueOption.TURBO, QueueOption.DEVICE_SYNC, 3):
        rig.check_works(rig.queue(options=options))


def test_synchronize_without_work_is_success(rig: Rig) -> None:
    queue = rig.queue()
    ok(rig.api.ze_command_queue_synchronize(queue, 0))
    ok(rig.api.ze_command_queue_synchronize(queue, INFINITE))


@pytest.mark.parametrize("mode", [QueueMode.DEFAULT, QueueMode.ASYNCHRONOUS])
def test_synchronize_ends_with_its_timeout_and_can_be_tried_again(rig: Rig, mode: int) -> None:
    queue = rig.queue(mode=mode)
    gate = rig.block(queue)
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    rig.signal(gate)
    rig.finish(queue)


def test_synchronize_waits_for_the_work(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    rig.submit(queue, rig.gated_copy(gate, target, rig.data(b"finished"), 8))
    timer = threading.Timer(0.05, lambda: rig.api.ze_event_host_signal(gate))
    timer.start()
    ok(rig.api.ze_command_queue_synchronize(queue, INFINITE))
    found = rig.api.read(target, 8)
    timer.join()
    assert found == b"finished"


def test_synchronize_waits_for_all_submissions(rig: Rig) -> None:
    queue, targets = rig.queue(), [rig.host(8) for _ in range(10)]
    gate = rig.block(queue)
    for target in targets:
        rig.submit(queue, rig.copy_list(target, rig.data(b"finished"), 8))
    rig.signal(gate)
    rig.finish(queue)
    assert all(rig.api.read(target, 8) == b"finished" for target in targets)


def test_synchronize_leaves_its_fences_signalled(rig: Rig) -> None:
    queue = rig.queue()
    fence = rig.fence(queue)
    rig.submit(queue, rig.copy_list(rig.host(8), rig.host(8), 8), fence=fence)
    rig.finish(queue)
    ok(rig.api.ze_fence_query_status(fence))


def test_synchronous_queue_has_finished_when_execute_returns(rig: Rig) -> None:
    queue, size = rig.queue(mode=QueueMode.SYNCHRONOUS), 1 << 24
    source, target = rig.host(size, fill=b"\x5a"), rig.host(size)
    rig.submit(queue, rig.copy_list(target, source, size))
    assert rig.api.read(target + size - 8, 8) == b"\x5a" * 8
    ok(rig.api.ze_command_queue_synchronize(queue, 0))


def test_device_sync_queue_runs_lists_in_order(rig: Rig) -> None:
    queue, gate = rig.queue(options=QueueOption.DEVICE_SYNC), rig.event()
    stages = [rig.data(b"in order"), *(rig.host(8) for _ in range(20))]
    rig.submit(queue, rig.gated_copy(gate, stages[1], stages[0], 8))
    copies = [rig.copy_list(stages[at + 1], stages[at], 8) for at in range(1, 20)]
    for copy in copies[:10]:
        rig.submit(queue, copy)
    rig.submit(queue, *copies[10:])
    rig.signal(gate)
    rig.finish(queue)
    assert rig.api.read(stages[-1], 8) == b"in order"


def test_device_sync_queue_waits_on_the_device_and_not_in_execute(rig: Rig) -> None:
    queue, target = rig.queue(options=QueueOption.DEVICE_SYNC), rig.host(8)
    gate = rig.block(queue)
    rig.submit(queue, rig.copy_list(target, rig.data(b"too soon"), 8))
    rig.settle()
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    rig.signal(gate)
    rig.finish(queue)


def test_blocked_queue_does_not_hold_up_another(rig: Rig) -> None:
    blocked = rig.queue()
    gate = rig.block(blocked)
    rig.check_works()
    rig.signal(gate)
    rig.finish(blocked)


def test_workload_type_can_be_changed_between_submissions(rig: Rig) -> None:
    queue = rig.queue()
    for workload in (WorkloadType.BACKGROUND, WorkloadType.DEFAULT) * 2:
        ok(rig.api.ze_command_queue_set_workload_type(queue, workload))
        rig.check_works(queue)


def test_unknown_workload_type_is_refused(rig: Rig) -> None:
    allowed = (ZeResult.ERROR_INVALID_ENUMERATION, ZeResult.ERROR_INVALID_ARGUMENT)
    assert rig.api.ze_command_queue_set_workload_type(rig.queue(), 7) in allowed


def test_more_submissions_than_a_ring_has_slots_all_run(rig: Rig) -> None:
    queue, count = rig.queue(), 1500
    data = b"".join(value.to_bytes(4, "little") for value in range(count))
    source, target = rig.data(data), rig.host(count * 4)
    for at in range(0, count * 4, 4):
        rig.submit(queue, rig.copy_list(target + at, source + at, 4))
    rig.finish(queue)
    assert rig.api.read(target, count * 4) == data


def test_one_call_takes_more_lists_than_a_ring_has_slots(rig: Rig) -> None:
    queue, count = rig.queue(), 1000
    data = b"".join(value.to_bytes(4, "little") for value in range(count))
    source, target = rig.data(data), rig.host(count * 4)
    copies = [rig.copy_list(target + at, source + at, 4) for at in range(0, count * 4, 4)]
    fence = rig.fence(queue)
    rig.submit(queue, *copies, fence=fence)
    ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))
    assert rig.api.read(target, count * 4) == data
    rig.api.write(target, bytes(count * 4))
    rig.submit(rig.queue(mode=QueueMode.SYNCHRONOUS), *copies)
    assert rig.api.read(target, count * 4) == data


def test_threads_submit_to_queues_of_their_own(rig: Rig) -> None:
    failures: list[object] = []

    def work() -> None:
        try:
            queue = rig.queue()
            for _ in range(50):
                rig.check_works(queue)
        except AssertionError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_queue_destroyed_with_work_in_flight_drops_what_has_not_begun(rig: Rig) -> None:
    queue, target = rig.queue(), rig.host(8)
    gate = rig.block(queue)
    rig.submit(queue, rig.copy_list(target, rig.data(b"too late"), 8))
    ok(rig.api.ze_command_queue_destroy(queue))
    rig.signal(gate)
    rig.check_works()
    assert rig.api.read(target, 8) == bytes(8)


# ---------------------------------------------------------------- the watchdog


@pytest.fixture
def hung(rig: Rig) -> tuple[Handle, Handle, Handle]:
    """Return a queue whose submission waits for an event never signalled; its fence; the event after it."""
    queue, after = rig.queue(), rig.event()
    fence = rig.fence(queue)
    rig.submit(queue, rig.recorded(wait(rig.event()), signal(after)), fence=fence)
    return queue, fence, after


def test_fence_and_queue_of_an_aborted_submission_are_lost(rig: Rig, hung: tuple[Handle, ...]) -> None:
    queue, fence, after = hung
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, BRIEF) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    assert rig.api.ze_fence_query_status(fence) == ZeResult.ERROR_DEVICE_LOST
    for timeout in (DEADLINE, 0, 0):
        assert rig.api.ze_command_queue_synchronize(queue, timeout) == ZeResult.ERROR_DEVICE_LOST
    assert rig.api.ze_event_host_synchronize(after, DEADLINE) == ZeResult.NOT_READY
    assert rig.api.ze_event_query_status(after) == ZeResult.NOT_READY
    ok(rig.api.ze_device_get_status(rig.device))
    ok(rig.api.ze_context_get_status(rig.context))
    for context in (rig.context, rig.new_context()):
        rig.check_works(context=context)
