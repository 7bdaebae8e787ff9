"""What the driver does in C++ with rings and fences: the same words as in Python."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import submit_calls
from softnpu.driver.submit_calls import SubmitCalls
from softnpu.emulator.common import linux, native_files
from softnpu.emulator.interface import records
from softnpu.emulator.interface.ring import DeviceRing, DriverRing
from softnpu.emulator.interface.shared import FenceRecord, SharedMapping

pytestmark = pytest.mark.quick

_SLOTS = 4
_RING, _FENCE, _SIZE = 128, 2048, 4096
_LONG_NS = 60_000_000_000


@pytest.fixture
def mapping() -> Iterator[SharedMapping]:
    fd = linux.memfd("test", _SIZE)
    try:
        yield SharedMapping(fd, _SIZE)
    finally:
        os.close(fd)


@pytest.fixture
def calls() -> SubmitCalls:
    assert submit_calls.CALLS is not None
    return submit_calls.CALLS


def test_a_submission_is_the_same_bytes(mapping: SharedMapping, calls: SubmitCalls) -> None:
    ring, device = DriverRing(mapping, _RING, _SLOTS), DeviceRing(mapping, _RING, _SLOTS, 0)
    for sequence in range(1, 2 * _SLOTS + 1):
        device.set_asleep(sequence % 2 == 0)
        submission = (sequence, 2**63 + sequence, 2**32 - 1, 2**64 - 1, 128, 2**64 - sequence)
        rings = [mapping.buffer[:_FENCE]]
        for submit in (ring.submit, lambda *words: calls.submit(ring.address, _SLOTS, *words)):
            mapping.buffer[:_FENCE] = rings[0]
            assert submit(*submission) is (sequence % 2 == 0)
            rings.append(mapping.buffer[:_FENCE])
        assert rings[1] == rings[2] != rings[0]


def test_a_poll_ends_with_the_ticket_or_the_submission(mapping: SharedMapping, calls: SubmitCalls) -> None:
    device, fence = DeviceRing(mapping, _RING, _SLOTS, 0), FenceRecord(mapping, _FENCE)

    def is_over(ticket: int, sequence: int, limit_ns: int) -> bool:
        return calls.poll(fence.address, ticket, mapping.address + _RING, sequence, limit_ns)

    assert not is_over(5, 2, 0)
    assert not is_over(5, 2, 10_000)
    fence.arm(5)
    fence.signal(5, 0)
    assert is_over(5, 2, _LONG_NS)
    assert not is_over(6, 2, 0)
    device.completed = 2
    device.publish()
    assert is_over(6, 2, _LONG_NS)
    assert not is_over(6, 3, 0)


def test_a_sleeper_is_woken_by_a_signal(mapping: SharedMapping, calls: SubmitCalls) -> None:
    fence = FenceRecord(mapping, _FENCE)
    fence.arm(5)
    sleeper = threading.Thread(target=calls.sleep, args=(fence.address, 5, _LONG_NS))
    sleeper.start()
    while not mapping.words[(_FENCE + records.FENCE_WAITERS) // 4]:
        pass
    fence.signal(5, 0)
    sleeper.join(20)
    assert not sleeper.is_alive()
    calls.sleep(fence.address, 5, _LONG_NS)  # signalled: it does not sleep


@pytest.mark.parametrize("words", [(), (1,) * 9, ("1",) * 8, (-1,) * 8, (2**64,) * 8])
def test_other_arguments_are_refused(calls: SubmitCalls, words: tuple[int, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        calls.submit(*words)


def test_a_library_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(submit_calls, "VERSION", submit_calls.VERSION + 1)
    assert submit_calls.load() is None
    assert "install softnpu again" in caplog.text


def test_without_the_library_there_are_no_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv(native_files.ENV_NATIVE_DIR, str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert submit_calls.load() is None
    assert "submits and waits in Python" in caplog.text
