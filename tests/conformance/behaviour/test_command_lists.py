"""Command lists: recording, closing, running, resetting (facts 7.4)."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import CommandListDesc
from tests.conformance.rig import DEADLINE, Rig, ok

pytestmark = pytest.mark.quick

STALE = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_ARGUMENT)


def execute(rig: Rig, *lists: object) -> ZeResult:
    """Executes on a queue of its own."""
    return rig.api.ze_command_queue_execute_command_lists(rig.queue(), len(lists), lists)


def test_unclosed_list_is_uninitialized(rig: Rig) -> None:
    barrier, reset = rig.command_list(), rig.copy_list(rig.host(8), rig.host(8), 8)
    ok(rig.api.ze_command_list_append_barrier(barrier))
    ok(rig.api.ze_command_list_reset(reset))
    for unclosed in (barrier, reset, rig.command_list(), rig.immediate()):
        assert execute(rig, unclosed) == ZeResult.ERROR_UNINITIALIZED


def test_one_unclosed_list_among_others_stops_all(rig: Rig) -> None:
    queue, target = rig.queue(), rig.host(8)
    copy = rig.copy_list(target, rig.data(b"not run!"), 8)
    result = rig.api.ze_command_queue_execute_command_lists(queue, 2, [copy, rig.command_list()])
    assert result == ZeResult.ERROR_UNINITIALIZED
    rig.finish(queue)
    assert rig.api.read(target, 8) == bytes(8)


def test_execution_checks_its_arguments(rig: Rig) -> None:
    run, queue = rig.api.ze_command_queue_execute_command_lists, rig.queue()
    copy = rig.copy_list(rig.host(8), rig.host(8), 8)
    assert run(queue, 0, []) == ZeResult.ERROR_INVALID_SIZE
    assert run(queue, 1, None) == ZeResult.ERROR_INVALID_NULL_POINTER
    assert run(queue, 2, [copy, None]) == ZeResult.ERROR_INVALID_NULL_POINTER
    assert run(None, 1, [copy]) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_empty_lists_are_skipped(rig: Rig) -> None:
    queue, target, empty = rig.queue(), rig.host(8), rig.command_list()
    rig.close(empty)
    rig.submit(queue, empty, rig.copy_list(target, rig.data(b"not void"), 8), empty)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"not void"


def test_queue_with_only_empty_lists_has_nothing_to_wait_for(rig: Rig) -> None:
    queue, empty = rig.queue(), rig.command_list()
    rig.close(empty)
    rig.submit(queue, empty)
    ok(rig.api.ze_command_queue_synchronize(queue, 0))


def test_closed_list_runs_many_times_without_reset(rig: Rig) -> None:
    queue, source, target = rig.queue(), rig.host(8), rig.host(8)
    copy = rig.copy_list(target, source, 8)
    for turn in range(10):
        rig.api.write(source, bytes([turn]) * 8)
        rig.submit(queue, copy)
        rig.finish(queue)
        assert rig.api.read(target, 8) == bytes([turn]) * 8


def test_list_may_be_submitted_again_while_it_runs(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    copy = rig.gated_copy(gate, target, rig.data(b"two runs"), 8)
    rig.submit(queue, copy)
    ok(rig.api.ze_event_host_signal(gate))
    rig.submit(queue, copy)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"two runs"


def test_list_runs_on_two_queues(rig: Rig) -> None:
    target = rig.host(8)
    copy = rig.copy_list(target, rig.data(b"on both."), 8)
    queues = [rig.queue(), rig.queue()]
    for queue in queues:
        rig.submit(queue, copy)
    for queue in queues:
        rig.finish(queue)
    assert rig.api.read(target, 8) == b"on both."


def test_the_same_list_twice_in_one_submission_runs_twice(rig: Rig) -> None:
    first, second = rig.data(b"\x01"), rig.data(b"\x02")
    swap, spare, queue = rig.command_list(), rig.host(1), rig.queue()
    for target, source in ((spare, first), (first, second), (second, spare)):
        ok(rig.api.ze_command_list_append_memory_copy(swap, target, source, 1))
        ok(rig.api.ze_command_list_append_barrier(swap))
    rig.close(swap)
    rig.submit(queue, swap, swap)
    rig.finish(queue)
    assert (rig.api.read(first, 1), rig.api.read(second, 1)) == (b"\x01", b"\x02")


def test_commands_of_a_list_run_in_order_across_barriers(rig: Rig) -> None:
    stages = [rig.data(b"barriers"), *(rig.host(8) for _ in range(10))]
    command_list = rig.command_list()
    for at in range(10):
        ok(rig.api.ze_command_list_append_memory_copy(command_list, stages[at + 1], stages[at], 8))
        ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.run(command_list)
    assert rig.api.read(stages[-1], 8) == b"barriers"


def test_thousand_commands_run(rig: Rig) -> None:
    target, command_list = rig.host(1000), rig.command_list()
    for at in range(1000):
        pattern = bytes([at % 251])
        ok(rig.api.ze_command_list_append_memory_fill(command_list, target + at, pattern, 1))
    rig.run(command_list)
    assert rig.api.read(target, 1000) == bytes(at % 251 for at in range(1000))


def test_append_after_close_is_not_available(rig: Rig) -> None:
    command_list, memory, event = rig.command_list(), rig.host(8), rig.event()
    rig.close(command_list)
    api, not_available = rig.api, ZeResult.ERROR_NOT_AVAILABLE
    assert api.ze_command_list_append_barrier(command_list) == not_available
    assert api.ze_command_list_append_memory_copy(command_list, memory, memory, 8) == not_available
    assert api.ze_command_list_append_memory_fill(command_list, memory, b"\x01", 8) == not_available
    assert api.ze_command_list_append_write_global_timestamp(command_list, memory) == not_available
    assert api.ze_command_list_append_signal_event(command_list, event) == not_available
    assert api.ze_command_list_append_event_reset(command_list, event) == not_available
    assert api.ze_command_list_append_wait_on_events(command_list, 1, [event]) == not_available


def test_refused_append_leaves_the_closed_list_as_it_was(rig: Rig) -> None:
    target = rig.host(8)
    copy = rig.copy_list(target, rig.data(b"original"), 8)
    rig.api.ze_command_list_append_memory_fill(copy, target, b"\xff", 8)
    queue = rig.queue()
    rig.submit(queue, copy)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"original"


def test_refused_append_leaves_the_open_list_as_it_was(rig: Rig) -> None:
    target, command_list = rig.host(8), rig.command_list()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x01", 8))
    assert rig.api.ze_command_list_append_memory_copy(command_list, target, 0, 8) != ZeResult.SUCCESS
    rig.run(command_list)
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_second_close_is_success(rig: Rig) -> None:
    command_list = rig.command_list()
    ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.close(command_list)
    rig.close(command_list)
    ok(execute(rig, command_list))


def test_reset_opens_and_empties_a_list(rig: Rig) -> None:
    queue, first, second = rig.queue(), rig.host(8), rig.host(8)
    command_list = rig.copy_list(first, rig.data(b"the past"), 8)
    ok(rig.api.ze_command_list_reset(command_list))
    ok(rig.api.ze_command_list_append_memory_fill(command_list, second, b"\x02", 8))
    rig.close(command_list)
    rig.submit(queue, command_list)
    rig.finish(queue)
    assert rig.api.read(first, 8) == bytes(8)
    assert rig.api.read(second, 8) == b"\x02" * 8


def test_reset_of_an_open_list_empties_it(rig: Rig) -> None:
    command_list, target, queue = rig.command_list(), rig.host(8), rig.queue()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x02", 8))
    ok(rig.api.ze_command_list_reset(command_list))
    rig.close(command_list)
    rig.submit(queue, command_list)
    rig.finish(queue)
    assert rig.api.read(target, 8) == bytes(8)


def test_reset_and_new_recording_do_not_change_what_was_submitted(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    command_list = rig.gated_copy(gate, target, rig.data(b"recorded"), 8)
    rig.submit(queue, command_list)
    ok(rig.api.ze_command_list_reset(command_list))
    ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.close(command_list)
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"recorded"


def test_list_may_be_destroyed_while_it_runs(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    command_list = rig.gated_copy(gate, target, rig.data(b"survived"), 8)
    rig.submit(queue, command_list)
    ok(rig.api.ze_command_list_destroy(command_list))
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"survived"


def test_host_synchronize_of_an_ordinary_list_is_uninitialized(rig: Rig) -> None:
    command_list = rig.copy_list(rig.host(8), rig.host(8), 8)
    result = rig.api.ze_command_list_host_synchronize(command_list, DEADLINE)
    assert result == ZeResult.ERROR_UNINITIALIZED


def test_ordinary_list_is_not_immediate(rig: Rig) -> None:
    assert rig.api.ze_command_list_is_immediate(rig.command_list()).get() is False


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 8])
def test_list_with_flags_of_the_headers_works(rig: Rig, flags: int) -> None:
    target, command_list = rig.host(8), rig.command_list(flags=flags)
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x09", 8))
    rig.run(command_list)
    assert rig.api.read(target, 8) == b"\x09" * 8


def test_list_creation_checks_its_arguments(rig: Rig) -> None:
    create, desc = rig.api.ze_command_list_create, CommandListDesc()
    null_handle, null_pointer = ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER
    other = CommandListDesc(ordinal=1)
    assert create(rig.context, rig.device, other).result == ZeResult.ERROR_INVALID_ARGUMENT
    assert create(None, rig.device, desc).result == null_handle
    assert create(rig.context, None, desc).result == null_handle
    assert create(rig.context, rig.device, None).result == null_pointer
    assert create(rig.context, rig.device, desc, out=False).result == null_pointer


def test_null_list_is_refused(rig: Rig) -> None:
    api, null, memory = rig.api, ZeResult.ERROR_INVALID_NULL_HANDLE, rig.host(8)
    assert api.ze_command_list_destroy(None) == null
    assert api.ze_command_list_close(None) == null
    assert api.ze_command_list_reset(None) == null
    assert api.ze_command_list_append_barrier(None) == null
    assert api.ze_command_list_append_memory_copy(None, memory, memory, 8) == null
    assert api.ze_command_list_append_memory_fill(None, memory, b"\x01", 8) == null


def test_destroyed_list_is_refused(rig: Rig) -> None:
    command_list = rig.copy_list(rig.host(8), rig.host(8), 8)
    ok(rig.api.ze_command_list_destroy(command_list))
    assert rig.api.ze_command_list_reset(command_list) in STALE
    assert execute(rig, command_list) in STALE
    assert rig.api.ze_command_list_destroy(command_list) in STALE
