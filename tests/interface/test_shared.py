"""Fences and events in mapped memory: which bytes each side writes, and that sleepers elsewhere wake."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping

_DEADLINE_S = 10.0
_SIZE = 4096
_OFFSET = 128
_FENCE = struct.Struct("<QIIQQQ24x")  # signalled, waiters, result, armed, cancel, time
_EVENT = struct.Struct("<III20xQ24x")  # state, changes, waiters, time

_SLEEPER = f"""
import sys
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping
mapping = SharedMapping(int(sys.argv[1]), {_SIZE})
if sys.argv[2] == "fence":
    fence = FenceRecord(mapping, {_OFFSET})
    while not fence.is_signalled(5):
        fence.sleep(5, 60_000_000_000)
    print(fence.result, flush=True)
else:
    event = EventRecord(mapping, {_OFFSET})
    while not event.signalled:
        event.sleep(60_000_000_000)
    print(event.state, flush=True)
"""


@pytest.fixture
def memory() -> Iterator[tuple[int, SharedMapping]]:
    fd = linux.memfd("test", _SIZE)
    try:
        yield fd, SharedMapping(fd, _SIZE)
    finally:
        os.close(fd)


@contextmanager
def _sleeper(memory: tuple[int, SharedMapping], kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps on the record; dead at the end of the test whatever happens."""
    fd, mapping = memory
    process = subprocess.Popen(
        [sys.executable, "-c", _SLEEPER, str(fd), kind], stdout=subprocess.PIPE, pass_fds=(fd,)
    )
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while not (mapping.words[(_OFFSET + 8) // 4] and _state_of(process.pid) == "S"):
            assert time.monotonic() < deadline, "the process does not go to sleep on the record"
            os.sched_yield()
        yield process
    finally:
        process.kill()
        process.communicate()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _fence(mapping: SharedMapping) -> tuple[int, ...]:
    return _FENCE.unpack_from(mapping.buffer, _OFFSET)


def _event(mapping: SharedMapping) -> tuple[int, ...]:
    return _EVENT.unpack_from(mapping.buffer, _OFFSET)


def test_arming_and_cancelling_write_a_ticket_each(memory: tuple[int, SharedMapping]) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(2**40)
    fence.cancel(7)
    assert _fence(memory[1]) == (0, 0, 0, 2**40, 7, 0)
    assert (fence.armed, fence.is_cancelled(7), fence.is_cancelled(2**40)) == (2**40, True, False)


def test_the_device_signals_a_ticket_with_result_and_time(memory: tuple[int, SharedMapping]) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(5)
    before = time.monotonic_ns()
    fence.signal(5, 0x70000001)
    signalled, waiters, result, armed, cancel, at = _fence(memory[1])
    assert (signalled, waiters, result, armed, cancel) == (5, 0, 0x70000001, 5, 0)
    assert before <= at <= time.monotonic_ns()
    assert (fence.is_signalled(5), fence.is_signalled(6), fence.result) == (True, False, 0x70000001)


@pytest.mark.parametrize("armed", [0, 4, 6])
def test_a_ticket_that_the_fence_does_not_wait_for_changes_nothing(
    memory: tuple[int, SharedMapping], armed: int
) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(armed)
    fence.signal(5, 1)
    assert _fence(memory[1]) == (0, 0, 0, armed, 0, 0)


@pytest.mark.parametrize(("state", "signalled"), [(0, False), (1, False), (2, False), (4, True), (5, True)])
def test_states_above_host_reset_are_signalled(
    memory: tuple[int, SharedMapping], state: int, signalled: bool
) -> None:
    mapping = memory[1]
    _EVENT.pack_into(mapping.buffer, _OFFSET, state, 0, 0, 0)
    assert EventRecord(mapping, _OFFSET).signalled is signalled


def test_the_host_changes_the_state_of_an_event_and_nothing_else(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    _EVENT.pack_into(mapping.buffer, _OFFSET, 4, 3, 0, 9)
    event = EventRecord(mapping, _OFFSET)
    for change, state in ((event.host_reset, 2), (event.host_signal, 5), (event.initialize, 0)):
        change()
        assert _event(mapping) == (state, 3, 0, 9)


def test_each_change_of_an_event_by_the_device_is_counted(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    _EVENT.pack_into(mapping.buffer, _OFFSET, 2, 2**32 - 1, 0, 0)
    event = EventRecord(mapping, _OFFSET)
    event.device_reset()
    assert _event(mapping) == (1, 0, 0, 0)
    event.device_signal()
    assert _event(mapping) == (4, 1, 0, event.time_ns)
    assert 0 < event.time_ns <= time.monotonic_ns()


def test_nothing_outside_the_64_bytes_is_written(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    fence = FenceRecord(mapping, _OFFSET)
    fence.arm(2**64 - 1)
    fence.cancel(2**64 - 1)
    fence.sleep(2**64 - 1, 1)
    fence.signal(2**64 - 1, 0xFFFFFFFF)
    event = EventRecord(mapping, _OFFSET)
    event.sleep(1)
    event.device_signal()
    assert not any(mapping.buffer[:_OFFSET])
    assert not any(mapping.buffer[_OFFSET + 64 :])


def test_a_sleep_announces_the_waiter_and_ends_at_its_time_out(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    FenceRecord(mapping, _OFFSET).sleep(5, 20_000_000)
    assert _fence(mapping)[1] == 1
    mapping.buffer[_OFFSET : _OFFSET + 64] = bytes(64)
    EventRecord(mapping, _OFFSET).sleep(20_000_000)
    assert _event(mapping)[2] == 1


def test_a_sleep_on_what_is_signalled_ends_at_once(memory: tuple[int, SharedMapping]) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(5)
    fence.signal(5, 0)
    fence.sleep(5, 60_000_000_000)
    event = EventRecord(memory[1], 0)
    event.device_signal()
    event.sleep(60_000_000_000)


def test_a_signalled_fence_wakes_a_sleeper_in_another_process(memory: tuple[int, SharedMapping]) -> None:
    with _sleeper(memory, "fence") as sleeper:
        fence = FenceRecord(memory[1], _OFFSET)
        fence.arm(5)
        fence.signal(5, 7)
        assert sleeper.communicate(timeout=_DEADLINE_S)[0] == b"7\n"
        assert _fence(memory[1])[1] == 0


@pytest.mark.parametrize("device", [True, False])
def test_a_signalled_event_wakes_a_sleeper_in_another_process(
    memory: tuple[int, SharedMapping], device: bool
) -> None:
    with _sleeper(memory, "event") as sleeper:
        event = EventRecord(memory[1], _OFFSET)
        (event.device_signal if device else event.host_signal)()
        assert sleeper.communicate(timeout=_DEADLINE_S)[0] == (b"4\n" if device else b"5\n")
        assert _event(memory[1])[2] == 0
