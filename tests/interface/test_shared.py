"""Signals in mapped memory: which bytes each side writes, and that sleepers of other processes wake."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.emulator.interface import linux
from softnpu.emulator.interface.records import SignalState
from softnpu.emulator.interface.shared import SharedMapping, Signal

_DEADLINE_S = 10.0
_SIZE = 4096
_OFFSET = 128
_SIGNAL = struct.Struct("<III4xQQ32x")  # state, waiters, result, submission, time

_SLEEPER = f"""
import sys
from softnpu.emulator.interface.shared import SharedMapping, Signal
signal = Signal(SharedMapping(int(sys.argv[1]), {_SIZE}), {_OFFSET})
while not signal.signalled:
    signal.sleep(60_000_000_000)
print(signal.state, signal.result, flush=True)
"""


@pytest.fixture
def memory() -> Iterator[tuple[int, SharedMapping]]:
    fd = linux.memfd("test", _SIZE)
    try:
        yield fd, SharedMapping(fd, _SIZE)
    finally:
        os.close(fd)


@pytest.fixture
def sleeper(memory: tuple[int, SharedMapping]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps on the signal; dead at the end of the test whatever happens."""
    fd, mapping = memory
    process = subprocess.Popen(
        [sys.executable, "-c", _SLEEPER, str(fd)], stdout=subprocess.PIPE, pass_fds=(fd,)
    )
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while not (_fields(mapping)[1] and _state_of(process.pid) == "S"):
            assert time.monotonic() < deadline, "the process does not go to sleep on the signal"
            os.sched_yield()
        yield process
    finally:
        process.kill()
        process.communicate()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _fields(mapping: SharedMapping) -> tuple[int, int, int, int, int]:
    state, waiters, result, submission, at = _SIGNAL.unpack_from(mapping.buffer, _OFFSET)
    return state, waiters, result, submission, at


def test_arming_writes_state_result_and_submission(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    _SIGNAL.pack_into(mapping.buffer, _OFFSET, 4, 0, 9, 9, 9)
    signal = Signal(mapping, _OFFSET)
    signal.arm(SignalState.HOST_RESET, 2**40)
    assert _fields(mapping) == (2, 0, 0, 2**40, 9)
    assert (signal.state, signal.signalled, signal.submission) == (SignalState.HOST_RESET, False, 2**40)


def test_the_device_signals_with_result_and_time(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    signal = Signal(mapping, _OFFSET)
    before = time.monotonic_ns()
    signal.device_signal(0x70000001)
    state, waiters, result, submission, at = _fields(mapping)
    assert (state, waiters, result, submission) == (4, 0, 0x70000001, 0)
    assert before <= at <= time.monotonic_ns()
    assert (signal.signalled, signal.result, signal.time_ns) == (True, 0x70000001, at)


@pytest.mark.parametrize(("state", "signalled"), [(0, False), (1, False), (2, False), (4, True), (5, True)])
def test_states_above_host_reset_are_signalled(
    memory: tuple[int, SharedMapping], state: int, signalled: bool
) -> None:
    mapping = memory[1]
    _SIGNAL.pack_into(mapping.buffer, _OFFSET, state, 0, 0, 0, 0)
    assert Signal(mapping, _OFFSET).signalled is signalled


def test_host_signal_and_device_reset_change_nothing_but_the_state(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    signal = Signal(mapping, _OFFSET)
    signal.host_signal()
    assert _fields(mapping) == (5, 0, 0, 0, 0)
    signal.device_reset()
    assert _fields(mapping) == (1, 0, 0, 0, 0)


def test_nothing_outside_the_64_bytes_is_written(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    signal = Signal(mapping, _OFFSET)
    signal.arm(SignalState.INITIAL, 2**64 - 1)
    signal.sleep(1)
    signal.device_signal(0xFFFFFFFF)
    assert not any(mapping.buffer[:_OFFSET])
    assert not any(mapping.buffer[_OFFSET + 64 :])


def test_a_sleep_announces_the_waiter_and_ends_at_its_time_out(memory: tuple[int, SharedMapping]) -> None:
    mapping = memory[1]
    start = time.monotonic()
    Signal(mapping, _OFFSET).sleep(20_000_000)
    assert 0.02 <= time.monotonic() - start < _DEADLINE_S
    assert _fields(mapping)[1] == 1


def test_a_sleep_on_a_signalled_signal_ends_at_once(memory: tuple[int, SharedMapping]) -> None:
    signal = Signal(memory[1], _OFFSET)
    signal.device_signal(0)
    start = time.monotonic()
    signal.sleep(60_000_000_000)
    assert time.monotonic() - start < _DEADLINE_S


def test_a_device_signal_wakes_a_sleeper_in_another_process(
    memory: tuple[int, SharedMapping], sleeper: subprocess.Popen[bytes]
) -> None:
    Signal(memory[1], _OFFSET).device_signal(7)
    assert sleeper.communicate(timeout=_DEADLINE_S)[0] == b"4 7\n"
    assert _fields(memory[1])[1] == 0


def test_a_host_signal_wakes_a_sleeper_in_another_process(
    memory: tuple[int, SharedMapping], sleeper: subprocess.Popen[bytes]
) -> None:
    Signal(memory[1], _OFFSET).host_signal()
    assert sleeper.communicate(timeout=_DEADLINE_S)[0] == b"5 0\n"
