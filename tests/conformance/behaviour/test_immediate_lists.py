"""Immediate command lists: every append is a submission."""

from __future__ import annotations

import threading

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import QueueMode
from tests.conformance.commands import after, barrier, copy, fill, reset, signal, wait
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok


def test_command_runs_when_it_is_appended(rig: Rig) -> None:
    target, immediate = rig.host(8), rig.immediate()
    ok(rig.api.ze_command_list_host_synchronize(immediate, 0))  # nothing to wait for
    for value in range(1, 5):
        rig.append(immediate, fill(target, bytes([value]), 8))
        ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
        assert rig.api.read(target, 8) == bytes([value]) * 8
    ok(rig.api.ze_command_list_reset(immediate))
    assert rig.api.read(target, 8) == b"\x04" * 8


def test_commands_run_one_after_the_other(rig: Rig) -> None:
    stages, immediate = [rig.data(b"one by 1"), *(rig.host(8) for _ in range(10))], rig.immediate()
    for at in range(10):
        rig.append(immediate, copy(stages[at + 1], stages[at], 8))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.read(stages[-1], 8) == b"one by 1"


def test_next_append_waits_for_the_one_before(rig: Rig) -> None:
    immediate, gate, first = rig.immediate(), rig.event(), rig.host(8)
    rig.append(immediate, copy(first, rig.data(b"the 1st."), 8, *after(gate)))
    timer = threading.Timer(0.05, lambda: rig.api.ze_event_host_signal(gate))
    timer.start()
    rig.append(immediate, fill(rig.host(8), b"\x01", 8))
    assert rig.api.read(first, 8) == b"the 1st."
    timer.join()
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))


def test_synchronous_immediate_list_has_finished_when_append_returns(rig: Rig) -> None:
    size = 1 << 24
    source, target = rig.host(size, fill=b"\x5a"), rig.host(size)
    rig.append(rig.immediate(mode=QueueMode.SYNCHRONOUS), copy(target, source, size))
    assert rig.api.read(target + size - 8, 8) == b"\x5a" * 8


def test_host_synchronize_gives_up_after_its_timeout(rig: Rig) -> None:
    immediate, gate = rig.immediate(), rig.event()
    rig.append(immediate, barrier(*after(gate)))
    assert rig.api.ze_command_list_host_synchronize(immediate, BRIEF) == ZeResult.NOT_READY
    rig.signal(gate)
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))


def test_command_waits_for_its_event_and_signals_another(rig: Rig) -> None:
    immediate, gate, done, target = rig.immediate(), rig.event(), rig.event(), rig.host(8)
    rig.append(immediate, fill(target, b"\x01", 8, *after(gate, signal=done)))
    assert rig.api.ze_command_list_host_synchronize(immediate, BRIEF) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    rig.signal(gate)
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.read(target, 8) == b"\x01" * 8
    ok(rig.api.ze_event_query_status(done))


def test_explicit_event_commands_run_by_themselves(rig: Rig) -> None:
    immediate, event, other = rig.immediate(), rig.event(), rig.event()
    rig.append(immediate, signal(event), wait(event), signal(other), reset(event))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY
    ok(rig.api.ze_event_query_status(other))


def test_immediate_list_says_that_it_is_and_is_not_closed(rig: Rig) -> None:
    immediate = rig.immediate()
    assert rig.api.ze_command_list_is_immediate(immediate).get() is True
    assert rig.api.ze_command_list_close(immediate) == ZeResult.ERROR_UNINITIALIZED
