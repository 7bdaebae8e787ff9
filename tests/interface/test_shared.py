"""Fences and events in mapped memory: the bytes that each side writes, and wake-ups across processes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping
from tests.support.waiting import DEADLINE_S, wait_asleep, wait_until

pytestmark = pytest.mark.quick

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
    try:
        wait_until(lambda: mapping.words[(_OFFSET + 8) // 4], what="the mark of a waiter")
        wait_asleep(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def _fence(mapping: SharedMapping) -> tuple[int, ...]:
    return _FENCE.unpack_from(mapping.buffer, _OFFSET)


def _event(mapping: SharedMapping) -> tuple[int, ...]:
    return _EVENT.unpack_from(mapping.buffer, _OFFSET)


def test_a_fence_is_armed_cancelled_and_signalled_by_ticket(memory: tuple[int, SharedMapping]) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(2**40)
    fence.cancel(7)
    assert _fence(memory[1]) == (0, 0, 0, 2**40, 7, 0)
    assert (fence.armed, fence.is_cancelled(7), fence.is_cancelled(2**40)) == (2**40, True, False)
    fence.signal(5, 1)  # not the ticket that it is armed with
    assert _fence(memory[1]) == (0, 0, 0, 2**40, 7, 0)
    fence.arm(5)
    fence.signal(5, 0x70000001)
    assert _fence(memory[1]) == (5, 0, 0x70000001, 5, 7, fence.time_ns)
    assert fence.time_ns > 0
    assert (fence.is_signalled(5), fence.is_signalled(6), fence.result) == (True, False, 0x70000001)


def test_the_host_changes_the_state_of_an_event_and_nothing_else(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    event = EventRecord(mapping, _OFFSET)
    for state, signalled in ((0, False), (1, False), (2, False), (4, True), (5, True)):
        _EVENT.pack_into(mapping.buffer, _OFFSET, state, 3, 0, 9)
        assert event.signalled is signalled
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
    assert event.time_ns > 0


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


def test_a_sleep_marks_its_waiter_and_ends_at_its_timeout(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    FenceRecord(mapping, _OFFSET).sleep(5, 20_000_000)
    assert _fence(mapping)[1] == 1
    mapping.buffer[_OFFSET : _OFFSET + 64] = bytes(64)
    EventRecord(mapping, _OFFSET).sleep(20_000_000)
    assert _event(mapping)[2] == 1


def test_a_sleep_on_a_signalled_record_ends_at_once(memory: tuple[int, SharedMapping]) -> None:
    fence = FenceRecord(memory[1], _OFFSET)
    fence.arm(5)
    fence.signal(5, 0)
    fence.sleep(5, 60_000_000_000)
    event = EventRecord(memory[1], 0)
    event.device_signal()
    event.sleep(60_000_000_000)


@pytest.mark.parametrize("signaller", ["fence", "device", "host"])
def test_a_signal_wakes_a_sleeper_in_another_process(
    memory: tuple[int, SharedMapping], signaller: str
) -> None:
    fence, event = FenceRecord(memory[1], _OFFSET), EventRecord(memory[1], _OFFSET)
    with _sleeper(memory, "fence" if signaller == "fence" else "event") as sleeper:
        if signaller == "fence":
            fence.arm(5)
            fence.signal(5, 7)
        elif signaller == "device":
            event.device_signal()
        else:
            event.host_signal()
        expected = {"fence": b"7\n", "device": b"4\n", "host": b"5\n"}[signaller]
        assert sleeper.communicate(timeout=DEADLINE_S)[0] == expected
        assert memory[1].words[(_OFFSET + 8) // 4] == 0
