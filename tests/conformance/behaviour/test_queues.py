"""Command queues: creation, order, waiting, and the watchdog (facts 1.4, 7.1, 7.4)."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE, QueueMode, QueueOption, QueuePriority, WorkloadType
from tests.conformance.api.structures import CommandQueueDesc, Handle
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok

STALE = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_ARGUMENT)


@pytest.mark.parametrize("priority", QueuePriority)
def test_queue_of_every_priority_works(rig: Rig, priority: int) -> None:
    queue, target = rig.queue(priority=priority), rig.host(8)
    rig.submit(queue, rig.copy_list(target, rig.data(b"12345678"), 8))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"12345678"


@pytest.mark.parametrize("options", [0, QueueOption.TURBO, QueueOption.DEVICE_SYNC, 3])
def test_queue_with_every_option_works(rig: Rig, options: int) -> None:
    queue, target = rig.queue(options=options), rig.host(8)
    rig.submit(queue, rig.copy_list(target, rig.data(b"12345678"), 8))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"12345678"


def test_other_ordinal_is_an_invalid_argument(rig: Rig) -> None:
    made = rig.api.ze_command_queue_create(rig.context, rig.device, CommandQueueDesc(ordinal=1))
    assert made.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_device_sync_on_a_synchronous_queue_is_an_invalid_enumeration(rig: Rig) -> None:
    desc = CommandQueueDesc(mode=QueueMode.SYNCHRONOUS, options=QueueOption.DEVICE_SYNC)
    made = rig.api.ze_command_queue_create(rig.context, rig.device, desc)
    assert made.result == ZeResult.ERROR_INVALID_ENUMERATION


def test_queue_creation_checks_its_arguments(rig: Rig) -> None:
    api, desc = rig.api, CommandQueueDesc()
    null_handle, null_pointer = ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER
    assert api.ze_command_queue_create(None, rig.device, desc).result == null_handle
    assert api.ze_command_queue_create(rig.context, None, desc).result == null_handle
    assert api.ze_command_queue_create(rig.context, rig.device, None).result == null_pointer
    assert api.ze_command_queue_create(rig.context, rig.device, desc, out=False).result == null_pointer


def test_synchronize_without_work_is_success(rig: Rig) -> None:
    queue = rig.queue()
    ok(rig.api.ze_command_queue_synchronize(queue, 0))
    ok(rig.api.ze_command_queue_synchronize(queue, INFINITE))


def test_synchronize_ends_with_its_timeout_and_can_be_tried_again(rig: Rig) -> None:
    queue, gate = rig.queue(), rig.event()
    rig.submit(queue, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
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
    queue, gate, targets = rig.queue(), rig.event(), [rig.host(8) for _ in range(10)]
    rig.submit(queue, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    for target in targets:
        rig.submit(queue, rig.copy_list(target, rig.data(b"finished"), 8))
    ok(rig.api.ze_event_host_signal(gate))
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


def test_asynchronous_queue_returns_before_the_work_has_ended(rig: Rig) -> None:
    queue, gate = rig.queue(mode=QueueMode.ASYNCHRONOUS), rig.event()
    rig.submit(queue, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)


def test_device_sync_queue_runs_lists_in_order(rig: Rig) -> None:
    queue, gate = rig.queue(options=QueueOption.DEVICE_SYNC), rig.event()
    stages = [rig.data(b"in order"), *(rig.host(8) for _ in range(20))]
    rig.submit(queue, rig.gated_copy(gate, stages[1], stages[0], 8))
    copies = [rig.copy_list(stages[at + 1], stages[at], 8) for at in range(1, 20)]
    for copy in copies[:10]:
        rig.submit(queue, copy)
    rig.submit(queue, *copies[10:])
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert rig.api.read(stages[-1], 8) == b"in order"


def test_device_sync_queue_waits_on_the_device_and_not_in_execute(rig: Rig) -> None:
    queue, gate, target = rig.queue(options=QueueOption.DEVICE_SYNC), rig.event(), rig.host(8)
    rig.submit(queue, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    rig.submit(queue, rig.copy_list(target, rig.data(b"too soon"), 8))
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)


def test_blocked_queue_does_not_hold_up_another(rig: Rig) -> None:
    blocked, free, gate, target = rig.queue(), rig.queue(), rig.event(), rig.host(8)
    rig.submit(blocked, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    rig.submit(free, rig.copy_list(target, rig.data(b"overtook"), 8))
    rig.finish(free)
    assert rig.api.read(target, 8) == b"overtook"
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(blocked)


@pytest.mark.parametrize("workload", WorkloadType)
def test_queue_works_with_every_workload_type(rig: Rig, workload: int) -> None:
    queue, target = rig.queue(), rig.host(8)
    ok(rig.api.ze_command_queue_set_workload_type(queue, workload))
    rig.submit(queue, rig.copy_list(target, rig.data(b"workload"), 8))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"workload"


def test_workload_type_can_be_changed_between_submissions(rig: Rig) -> None:
    queue, target = rig.queue(), rig.host(8)
    for number, workload in enumerate((WorkloadType.BACKGROUND, WorkloadType.DEFAULT) * 2):
        ok(rig.api.ze_command_queue_set_workload_type(queue, workload))
        rig.submit(queue, rig.copy_list(target, rig.data(bytes([number]) * 8), 8))
        rig.finish(queue)
        assert rig.api.read(target, 8) == bytes([number]) * 8


def test_unknown_workload_type_is_refused(rig: Rig) -> None:
    allowed = (ZeResult.ERROR_INVALID_ENUMERATION, ZeResult.ERROR_INVALID_ARGUMENT)
    assert rig.api.ze_command_queue_set_workload_type(rig.queue(), 7) in allowed
    null = rig.api.ze_command_queue_set_workload_type(None, WorkloadType.DEFAULT)
    assert null == ZeResult.ERROR_INVALID_NULL_HANDLE


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
            queue, target = rig.queue(), rig.host(8)
            copy = rig.copy_list(target, rig.data(b"threaded"), 8)
            for _ in range(50):
                rig.submit(queue, copy)
                rig.finish(queue)
            assert rig.api.read(target, 8) == b"threaded"
        except AssertionError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_queue_may_be_destroyed_with_work_in_flight(rig: Rig) -> None:
    queue, gate = rig.queue(), rig.event()
    rig.submit(queue, rig.gated_copy(gate, rig.host(8), rig.host(8), 8))
    ok(rig.api.ze_command_queue_destroy(queue))
    ok(rig.api.ze_event_host_signal(gate))
    again, target = rig.queue(), rig.host(8)
    rig.submit(again, rig.copy_list(target, rig.data(b"still up"), 8))
    rig.finish(again)
    assert rig.api.read(target, 8) == b"still up"


def test_destroyed_queue_is_refused(rig: Rig) -> None:
    queue, copy = rig.queue(), rig.copy_list(rig.host(8), rig.host(8), 8)
    ok(rig.api.ze_command_queue_destroy(queue))
    assert rig.api.ze_command_queue_execute_command_lists(queue, 1, [copy]) in STALE
    assert rig.api.ze_command_queue_synchronize(queue, 0) in STALE
    assert rig.api.ze_command_queue_destroy(queue) in STALE


# ---------------------------------------------------------------- the watchdog


@pytest.fixture
def hung(rig: Rig) -> tuple[Handle, Handle, Handle]:
    """A queue whose submission waits for an event that nobody signals; its fence; its event afterwards."""
    queue, never, after = rig.queue(), rig.event(), rig.event()
    fence, command_list = rig.fence(queue), rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [never]))
    ok(rig.api.ze_command_list_append_signal_event(command_list, after))
    rig.close(command_list)
    rig.submit(queue, command_list, fence=fence)
    return queue, fence, after


def test_fence_of_an_aborted_submission_is_device_lost(rig: Rig, hung: tuple[Handle, ...]) -> None:
    queue, fence, _ = hung
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, BRIEF) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    assert rig.api.ze_fence_query_status(fence) == ZeResult.ERROR_DEVICE_LOST


def test_lost_queue_says_so_every_time(rig: Rig, hung: tuple[Handle, ...]) -> None:
    queue, _, _ = hung
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    for _ in range(3):
        assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.ERROR_DEVICE_LOST


def test_everything_else_works_on_after_an_abort(rig: Rig, hung: tuple[Handle, ...]) -> None:
    lost, _, after = hung
    assert rig.api.ze_command_queue_synchronize(lost, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    assert rig.api.ze_event_host_synchronize(after, DEADLINE) == ZeResult.NOT_READY
    assert rig.api.ze_event_query_status(after) == ZeResult.NOT_READY
    ok(rig.api.ze_device_get_status(rig.device))
    ok(rig.api.ze_context_get_status(rig.context))
    for context in (rig.context, rig.new_context()):
        queue, target, command_list = rig.queue(context), rig.host(8, context), rig.command_list(context)
        ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x33", 8))
        rig.close(command_list)
        rig.submit(queue, command_list)
        rig.finish(queue)
        assert rig.api.read(target, 8) == b"\x33" * 8
