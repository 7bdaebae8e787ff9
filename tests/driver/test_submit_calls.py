"""What the driver does in C++ with rings and fences: the same words as in Python."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnpu.driver import endings, submit_calls
from softnpu.driver.submit_calls import SubmitCalls
from softnpu.emulator.common import linux, native_files
from softnpu.emulator.interface import records
from softnpu.emulator.interface.ring import DeviceRing, DriverRing
from softnpu.emulator.interface.shared import FenceRecord, SharedMapping
from tests.support.waiting import wait_until

pytestmark = pytest.mark.quick

_SLOTS = 4
_RING, _FENCE, _SIZE = 128, 2048, 4096
_LONG_NS = 60_000_000_000
_SLICE_NS = 1_000_000
_DRIVER_CORE = (_RING + records.RING.offset("driver_core")) // 4
_ENGINE_CORE = (_RING + records.RING.offset("engine_core")) // 4


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
    fence = FenceRecord(mapping, _FENCE)
    doorbell = os.eventfd(0, os.EFD_NONBLOCK)

    def in_python(sequence: int, *words: int) -> bool:
        ring.fill(sequence, *words)
        fence.arm(words[-1])
        ring.publish(sequence)
        return ring.needs_doorbell()

    def in_cpp(*words: int) -> bool:
        assert not calls.submit(*(ring.address, _SLOTS, *words, fence.address, doorbell))
        return bool(select.select([doorbell], [], [], 0)[0] and os.eventfd_read(doorbell))

    for sequence in range(1, 2 * _SLOTS + 1):
        device.set_asleep(sequence % 2 == 0)
        submission = (sequence, 2**63 + sequence, 2**32 - 1, 2**64 - 1, 128, 2**64 - sequence)
        words = [mapping.buffer[:]]
        for submit in (in_python, in_cpp):
            mapping.buffer[:] = words[0]
            assert submit(*submission) is (sequence % 2 == 0)
            mapping.words[_DRIVER_CORE] = 0  # a hint that Python does not give
            words.append(mapping.buffer[:])
        assert words[1] == words[2] != words[0]
    os.close(doorbell)
    assert calls.submit(*(ring.address, _SLOTS, *submission, 0, doorbell)), "a doorbell that cannot be rung"


def test_a_poll_ends_with_the_ticket_or_the_submission(mapping: SharedMapping, calls: SubmitCalls) -> None:
    device, fence = DeviceRing(mapping, _RING, _SLOTS, 0), FenceRecord(mapping, _FENCE)

    def poll(ticket: int, sequence: int, limit_ns: int) -> int:
        return calls.poll(fence.address, ticket, mapping.address + _RING, sequence, limit_ns)

    assert poll(5, 2, 0) == poll(5, 2, 10_000) == 0
    fence.arm(5)
    fence.signal(5, 0)
    assert poll(5, 2, _LONG_NS) == 1
    assert poll(6, 2, 0) == 0
    device.completed = 2
    device.publish()
    assert poll(6, 2, _LONG_NS) == 1
    assert poll(6, 3, 0) == 0


@pytest.mark.parametrize("same", [True, False])
def test_a_poll_goes_on_unless_the_engine_needs_the_processor(
    mapping: SharedMapping, calls: SubmitCalls, same: bool
) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    try:
        ring = DriverRing(mapping, _RING, _SLOTS)
        calls.submit(ring.address, _SLOTS, 1, 7, 64, 0, 0, 0, 0, 0)
        assert mapping.words[_DRIVER_CORE] == core + 1
        mapping.words[_ENGINE_CORE] = core + 1 if same else core + 2
        assert calls.poll(mapping.address + _FENCE, 5, ring.address, 1, 1_000_000) == (2 if same else 0)
    finally:
        os.sched_setaffinity(0, before)


def test_a_poll_ends_at_once_while_the_engine_is_busy_with_others(
    mapping: SharedMapping, calls: SubmitCalls
) -> None:
    fence, ring = FenceRecord(mapping, _FENCE), mapping.address + _RING
    mapping.words[_ENGINE_CORE] = 2**32 - 1
    assert calls.poll(fence.address, 5, ring, 1, _LONG_NS) == 2
    assert calls.poll(fence.address, 5, ring, 1, 0) == 0
    fence.arm(5)
    fence.signal(5, 0)
    assert calls.poll(fence.address, 5, ring, 1, _LONG_NS) == 1


class _Sleeper:
    """A thread that sleeps on a fence for ticket 5 of submission 2. `wake` what should end that."""

    def __init__(self, mapping: SharedMapping, calls: SubmitCalls, slice_ns: int) -> None:
        self.fence = FenceRecord(mapping, _FENCE)
        self.fence.arm(5)
        self.device = DeviceRing(mapping, _RING, _SLOTS, 0)
        self.peer, self._socket = socket.socketpair()
        self._marks = mapping.words, (_FENCE + records.FENCE_WAITERS) // 4
        ring = mapping.address + _RING
        count = endings.ADDRESS, endings.COUNT.value
        self.words = self.fence.address, 5, ring, 2, _LONG_NS, slice_ns, *count, self._socket.fileno(), 0
        self._call = calls.sleep

    def is_ended_by(self, wake: Callable[[], object]) -> None:
        thread = threading.Thread(target=self._call, args=self.words, daemon=True)
        thread.start()
        self.wait_until_asleep()
        wake()
        thread.join(20)
        assert not thread.is_alive()

    def wait_until_asleep(self) -> None:
        words, at = self._marks
        wait_until(lambda: words[at], what="the sleeper has marked itself")


def test_a_sleeper_is_woken_by_a_signal(mapping: SharedMapping, calls: SubmitCalls) -> None:
    sleeper = _Sleeper(mapping, calls, _LONG_NS)
    sleeper.is_ended_by(lambda: sleeper.fence.signal(5, 0))
    sleeper.is_ended_by(lambda: None)  # signalled: it does not sleep


@pytest.mark.parametrize("end", ["count", "submission", "peer"])
def test_a_sleeper_looks_between_slices_whether_its_wait_has_ended(
    mapping: SharedMapping, calls: SubmitCalls, end: str
) -> None:
    sleeper = _Sleeper(mapping, calls, _SLICE_NS)

    def publish() -> None:
        sleeper.device.completed = 2
        sleeper.device.publish()

    ends = {"count": endings.note, "submission": publish, "peer": sleeper.peer.close}
    sleeper.is_ended_by(ends[end])


def test_a_sleeper_sees_to_signals_of_its_process(mapping: SharedMapping, calls: SubmitCalls) -> None:
    """Also to one that does not interrupt it, because another thread has received it."""
    sleeper = _Sleeper(mapping, calls, _SLICE_NS)

    def interrupt() -> None:
        sleeper.wait_until_asleep()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    def handle(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(InterruptedError):
            calls.sleep(*sleeper.words)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("words", [(), (1,) * 9, ("1",) * 10, (-1,) * 10, (2**64,) * 10])
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
