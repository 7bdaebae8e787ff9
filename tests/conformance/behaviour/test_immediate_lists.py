"""Immediate command lists: every append is a submission (facts 7.4)."""

from __future__ import annotations

import threading

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import QueueMode
from tests.conformance.api.structures import CommandQueueDesc
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok


def test_command_runs_when_it_is_appended(rig: Rig) -> None:
    target, immediate = rig.host(8), rig.immediate()
    ok(rig.api.ze_command_list_append_memory_fill(immediate, target, b"\x05", 8))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.read(target, 8) == b"\x05" * 8


def test_commands_run_one_after_the_other(rig: Rig) -> None:
    stages, immediate = [rig.data(b"one by 1"), *(rig.host(8) for _ in range(10))], rig.immediate()
    for at in range(10):
        ok(rig.api.ze_command_list_append_memory_copy(immediate, stages[at + 1], stages[at], 8))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.read(stages[-1], 8) == b"one by 1"


def test_next_append_waits_for_the_one_before(rig: Rig) -> None:
    immediate, gate, first = rig.immediate(), rig.event(), rig.host(8)
    source = rig.data(b"the 1st.")
    ok(rig.api.ze_command_list_append_memory_copy(immediate, first, source, 8, None, 1, [gate]))
    timer = threading.Timer(0.05, lambda: rig.api.ze_event_host_signal(gate))
    timer.start()
    ok(rig.api.ze_command_list_append_memory_fill(immediate, rig.host(8), b"\x01", 8))
    assert rig.api.read(first, 8) == b"the 1st."
    timer.join()
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))


def test_synchronous_immediate_list_has_finished_when_append_returns(rig: Rig) -> None:
    size = 1 << 24
    source, target = rig.host(size, fill=b"\x5a"), rig.host(size)
    immediate = rig.immediate(mode=QueueMode.SYNCHRONOUS)
    ok(rig.api.ze_command_list_append_memory_copy(immediate, target, source, size))
    assert rig.api.read(target + size - 8, 8) == b"\x5a" * 8


def test_host_synchronize_gives_up_after_its_timeout(rig: Rig) -> None:
    immediate, gate = rig.immediate(), rig.event()
    ok(rig.api.ze_command_list_append_barrier(immediate, None, 1, [gate]))
    assert rig.api.ze_command_list_host_synchronize(immediate, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))


def test_host_synchronize_without_work_is_success(rig: Rig) -> None:
    ok(rig.api.ze_command_list_host_synchronize(rig.immediate(), 0))


def test_list_works_on_after_host_synchronize(rig: Rig) -> None:
    immediate, target = rig.immediate(), rig.host(1)
    for value in range(5):
        ok(rig.api.ze_command_list_append_memory_fill(immediate, target, bytes([value]), 1))
        ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
        assert rig.api.read(target, 1) == bytes([value])


def test_signal_event_of_a_command_is_signalled(rig: Rig) -> None:
    immediate, event = rig.immediate(), rig.event()
    ok(rig.api.ze_command_list_append_memory_fill(immediate, rig.host(8), b"\x01", 8, event))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    ok(rig.api.ze_event_query_status(event))


def test_wait_event_of_a_command_is_waited_for(rig: Rig) -> None:
    immediate, gate, target = rig.immediate(), rig.event(), rig.host(8)
    ok(rig.api.ze_command_list_append_memory_fill(immediate, target, b"\x01", 8, None, 1, [gate]))
    assert rig.api.ze_command_list_host_synchronize(immediate, BRIEF) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_explicit_event_commands_run_by_themselves(rig: Rig) -> None:
    immediate, event, other = rig.immediate(), rig.event(), rig.event()
    ok(rig.api.ze_command_list_append_signal_event(immediate, event))
    ok(rig.api.ze_command_list_append_wait_on_events(immediate, 1, [event]))
    ok(rig.api.ze_command_list_append_signal_event(immediate, other))
    ok(rig.api.ze_command_list_append_event_reset(immediate, event))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY
    ok(rig.api.ze_event_query_status(other))


def test_close_is_uninitialized(rig: Rig) -> None:
    assert rig.api.ze_command_list_close(rig.immediate()) == ZeResult.ERROR_UNINITIALIZED


def test_reset_is_success(rig: Rig) -> None:
    immediate, target = rig.immediate(), rig.host(8)
    ok(rig.api.ze_command_list_append_memory_fill(immediate, target, b"\x01", 8))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    ok(rig.api.ze_command_list_reset(immediate))
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_immediate_list_says_that_it_is(rig: Rig) -> None:
    assert rig.api.ze_command_list_is_immediate(rig.immediate()).get() is True


def test_other_ordinal_is_an_invalid_argument(rig: Rig) -> None:
    desc = CommandQueueDesc(ordinal=1)
    made = rig.api.ze_command_list_create_immediate(rig.context, rig.device, desc)
    assert made.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_immediate_list_creation_checks_its_arguments(rig: Rig) -> None:
    api, desc = rig.api, CommandQueueDesc()
    null_handle, null_pointer = ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER
    assert api.ze_command_list_create_immediate(None, rig.device, desc).result == null_handle
    assert api.ze_command_list_create_immediate(rig.context, None, desc).result == null_handle
    assert api.ze_command_list_create_immediate(rig.context, rig.device, None).result == null_pointer
    made = api.ze_command_list_create_immediate(rig.context, rig.device, desc, out=False)
    assert made.result == null_pointer
