"""Command lists: recording, closing, running, resetting."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.commands import barrier, copy, fill, reset, signal, timestamp, wait
from tests.conformance.rig import DEADLINE, Rig, ok

pytestmark = pytest.mark.quick


def execute(rig: Rig, *lists: object) -> ZeResult:
    """Execute on a queue of its own."""
    return rig.api.ze_command_queue_execute_command_lists(rig.queue(), len(lists), lists)


def test_unclosed_list_is_uninitialized(rig: Rig) -> None:
    open_list, emptied = rig.command_list(), rig.copy_list(rig.host(8), rig.host(8), 8)
    rig.append(open_list, barrier())
    ok(rig.api.ze_command_list_reset(emptied))
    for unclosed in (open_list, emptied, rig.command_list(), rig.immediate()):
        assert execute(rig, unclosed) == ZeResult.ERROR_UNINITIALIZED


def test_one_unclosed_list_among_others_stops_all(rig: Rig) -> None:
    queue, target = rig.queue(), rig.host(8)
    closed = rig.copy_list(target, rig.data(b"not run!"), 8)
    result = rig.api.ze_command_queue_execute_command_lists(queue, 2, [closed, rig.command_list()])
    assert result == ZeResult.ERROR_UNINITIALIZED
    rig.finish(queue)
    assert rig.api.read(target, 8) == bytes(8)


def test_execution_checks_its_arguments(rig: Rig) -> None:
    run, queue = rig.api.ze_command_queue_execute_command_lists, rig.queue()
    closed = rig.copy_list(rig.host(8), rig.host(8), 8)
    assert run(queue, 0, []) == ZeResult.ERROR_INVALID_SIZE
    assert run(queue, 2, [closed, None]) == ZeResult.ERROR_INVALID_NULL_POINTER


def test_empty_lists_are_skipped(rig: Rig) -> None:
    queue, target, empty = rig.queue(), rig.host(8), rig.recorded()
    rig.submit(queue, empty)
    ok(rig.api.ze_command_queue_synchronize(queue, 0))  # nothing to wait for
    rig.submit(queue, empty, rig.copy_list(target, rig.data(b"not void"), 8), empty)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"not void"


def test_closed_list_runs_many_times_without_reset(rig: Rig) -> None:
    queue, source, target = rig.queue(), rig.host(8), rig.host(8)
    closed = rig.copy_list(target, source, 8)
    for turn in range(10):
        rig.api.write(source, bytes([turn]) * 8)
        rig.submit(queue, closed)
        rig.finish(queue)
        assert rig.api.read(target, 8) == bytes([turn]) * 8


def test_list_may_be_submitted_again_while_it_runs(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    closed = rig.gated_copy(gate, target, rig.data(b"two runs"), 8)
    rig.submit(queue, closed)
    rig.signal(gate)
    rig.submit(queue, closed)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"two runs"


def test_list_runs_on_two_queues(rig: Rig) -> None:
    target = rig.host(8)
    closed = rig.copy_list(target, rig.data(b"on both."), 8)
    queues = [rig.queue(), rig.queue()]
    for queue in queues:
        rig.submit(queue, closed)
    rig.finish(*queues)
    assert rig.api.read(target, 8) == b"on both."


def test_the_same_list_twice_in_one_submission_runs_twice(rig: Rig) -> None:
    first, second, spare = rig.data(b"\x01"), rig.data(b"\x02"), rig.host(1)
    copies = ((spare, first), (first, second), (second, spare))
    swap = rig.recorded(*(step for pair in copies for step in (copy(*pair, 1), barrier())))
    queue = rig.queue()
    rig.submit(queue, swap, swap)
    rig.finish(queue)
    assert (rig.api.read(first, 1), rig.api.read(second, 1)) == (b"\x01", b"\x02")


def test_commands_of_a_list_run_in_order_across_barriers(rig: Rig) -> None:
    stages, command_list = [rig.data(b"barriers"), *(rig.host(8) for _ in range(10))], rig.command_list()
    for at in range(10):
        rig.append(command_list, copy(stages[at + 1], stages[at], 8), barrier())
    rig.run(command_list)
    assert rig.api.read(stages[-1], 8) == b"barriers"


def test_thousand_commands_run(rig: Rig) -> None:
    target = rig.host(1000)
    rig.execute(*(fill(target + at, bytes([at % 251]), 1) for at in range(1000)))
    assert rig.api.read(target, 1000) == bytes(at % 251 for at in range(1000))


def test_append_after_close_is_not_available(rig: Rig) -> None:
    memory, event, closed = rig.host(8), rig.event(), rig.recorded()
    commands = (
        barrier(),
        copy(memory, memory, 8),
        fill(memory, b"\x01", 8),
        timestamp(memory),
        signal(event),
        reset(event),
        wait(event),
    )
    assert {command(rig.api, closed) for command in commands} == {ZeResult.ERROR_NOT_AVAILABLE}


def test_refused_append_leaves_the_list_as_it_was(rig: Rig) -> None:
    queue, target, command_list = rig.queue(), rig.host(8), rig.command_list()
    rig.append(command_list, fill(target, b"\x01", 8))
    assert copy(target, 0, 8)(rig.api, command_list) != ZeResult.SUCCESS
    rig.close(command_list)
    assert fill(target, b"\xff", 8)(rig.api, command_list) != ZeResult.SUCCESS
    rig.submit(queue, command_list)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_second_close_is_success(rig: Rig) -> None:
    closed = rig.recorded(barrier())
    rig.close(closed)
    ok(execute(rig, closed))


def test_reset_opens_and_empties_a_list(rig: Rig) -> None:
    first, second = rig.host(8), rig.host(8)
    command_list = rig.copy_list(first, rig.data(b"the past"), 8)
    ok(rig.api.ze_command_list_reset(command_list))
    rig.append(command_list, fill(second, b"\x02", 8))
    rig.run(command_list)
    assert rig.api.read(first, 8) == bytes(8)
    assert rig.api.read(second, 8) == b"\x02" * 8


def test_reset_of_an_open_list_empties_it(rig: Rig) -> None:
    command_list, target = rig.command_list(), rig.host(8)
    rig.append(command_list, fill(target, b"\x02", 8))
    ok(rig.api.ze_command_list_reset(command_list))
    rig.run(command_list)
    assert rig.api.read(target, 8) == bytes(8)


@pytest.mark.parametrize("gone", ["reset", "destroyed"])
def test_submitted_list_may_be_recorded_anew_or_destroyed(rig: Rig, gone: str) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    command_list = rig.gated_copy(gate, target, rig.data(b"recorded"), 8)
    rig.submit(queue, command_list)
    if gone == "reset":
        ok(rig.api.ze_command_list_reset(command_list))
        rig.append(command_list, barrier())
        rig.close(command_list)
    else:
        ok(rig.api.ze_command_list_destroy(command_list))
    rig.signal(gate)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"recorded"


def test_ordinary_list_is_not_immediate(rig: Rig) -> None:
    closed = rig.copy_list(rig.host(8), rig.host(8), 8)
    assert rig.api.ze_command_list_host_synchronize(closed, DEADLINE) == ZeResult.ERROR_UNINITIALIZED
    assert rig.api.ze_command_list_is_immediate(closed).get() is False


def test_list_with_flags_of_the_headers_works(rig: Rig) -> None:
    for flags in (0, 1, 2, 4, 8):
        target, command_list = rig.host(8), rig.command_list(flags=flags)
        rig.append(command_list, fill(target, b"\x09", 8))
        rig.run(command_list)
        assert rig.api.read(target, 8) == b"\x09" * 8, flags
