"""Device memory: what may be asked for, what it costs, who may have how much, and that it comes back."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os

import numpy as np
import pytest

from softnpu.driver import Context, Driver, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.leaks import descriptors_of
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import check_works, failure

MIB = 1 << 20
_SIZES = [1, 63, 64, 65, 4095, 4096, 4097, 256 * 1024, 256 * 1024 + 1, MIB, 5_000_000]


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.mark.parametrize("kind", ["alloc_host", "alloc_device", "alloc_shared"])
@pytest.mark.parametrize("alignment", [0, 1, 64, 4096])
def test_every_size_is_served_aligned_and_apart(context: Context, kind: str, alignment: int) -> None:
    taken = [getattr(context, kind)(size, alignment) for size in _SIZES for _ in range(2)]
    for number, memory in enumerate(taken):
        assert memory.address % max(64, alignment) == 0
        assert memory.view().size == memory.size
        memory.view()[:] = number
    for number, memory in enumerate(taken):
        assert np.all(memory.view() == number), "somebody else wrote here"


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_cannot_be_is_refused(context: Context, size: int) -> None:
    error = failure(lambda: context.alloc_host(size), ZeResult.ERROR_UNSUPPORTED_SIZE)
    assert error.call == "zeMemAllocHost"
    assert f"{size}" in error.info.found


@pytest.mark.parametrize("alignment", [-1, 3, 65, 8192, 2**63])
def test_an_alignment_that_cannot_be_is_refused(context: Context, alignment: int) -> None:
    error = failure(lambda: context.alloc_device(64, alignment), ZeResult.ERROR_UNSUPPORTED_ALIGNMENT)
    assert f"{alignment}" in error.info.found


def test_a_kind_that_cannot_be_is_refused(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        info = wire.info(msg.MemAlloc(context=context.handle, kind="magic", size=64))
    assert info.result == ZeResult.ERROR_INVALID_ENUMERATION


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, 2**63, 2**64 - 1])
def test_more_than_the_device_has_is_out_of_memory(context: Context, size: int) -> None:
    error = failure(lambda: context.alloc_device(size), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
    assert str(size) in str(error)
    check_works(context)


def test_freed_memory_is_accounted_for(context: Context) -> None:
    total, before = context.query_memory()
    memory = [context.alloc_host(size) for size in _SIZES]
    assert context.query_memory() == (total, before + sum(_SIZES))

    for entry in memory:
        entry.destroy()

    assert context.query_memory() == (total, before)


def test_a_session_has_a_limit_that_does_not_touch_another(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(memory=24 * MIB, session_memory=8 * MIB)
    with Driver.open(daemon.socket) as first, Driver.open(daemon.socket) as second:
        one, two = first.devices[0].create_context(), second.devices[0].create_context()
        full = one.alloc_host(8 * MIB)
        error = failure(lambda: one.alloc_host(1), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
        assert f"{8 * MIB}" in str(error)
        assert "session" in str(error)

        two.alloc_host(7 * MIB)
        check_works(two)
        full.destroy()
        assert one.alloc_host(8 * MIB).size == 8 * MIB


def test_a_device_has_a_limit_for_all_sessions_together(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(memory=16 * MIB)
    with Driver.open(daemon.socket) as first, Driver.open(daemon.socket) as second:
        one, two = first.devices[0].create_context(), second.devices[0].create_context()
        kept = one.alloc_host(12 * MIB)
        error = failure(lambda: two.alloc_host(5 * MIB), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
        assert "device 0" in str(error)
        check_works(two)
        one.destroy()
        assert kept.destroyed
        wait_until(lambda: daemon.memory_used() < MIB)
        assert two.alloc_host(12 * MIB).size == 12 * MIB


def test_small_allocations_share_descriptors(daemon: Daemon, context: Context) -> None:
    here, there = descriptors_of(os.getpid()), daemon.fd_count
    memory = [context.alloc_host(64 + 16 * (number % 100)) for number in range(1000)]

    assert len({entry.address for entry in memory}) == 1000
    assert descriptors_of(os.getpid()) - here < 10
    assert daemon.fd_count - there < 10
    ends = sorted((entry.address, entry.address + entry.size) for entry in memory)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_what_was_freed_is_used_again(context: Context) -> None:
    for _ in range(200):
        memory = context.alloc_host(100_000)
        memory.view()[:] = 1
        memory.destroy()
    assert len(context.memory._segments) < 4


def test_a_received_segment_cannot_change_its_size(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        WireContext(wire).alloc(4096)
        segment = wire.take_fd()
        size = os.fstat(segment).st_size
        for other in (0, size - 4096, size + 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(segment, other)
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert linux.has_seals(segment, linux.SEALS_FIXED_SIZE)


def test_memory_of_another_session_is_not_mapped(daemon: Daemon) -> None:
    with Wire(daemon.socket) as first, Wire(daemon.socket) as second:
        first.hello()
        second.hello()
        one, two = WireContext(first), WireContext(second)
        one.alloc(4096).write(b"secret")
        assert b"secret" not in two.alloc(4096).mapping.buffer[:]


def test_fresh_memory_is_zero(context: Context) -> None:
    assert not context.alloc_host(3 * MIB).view().any()


@pytest.mark.parametrize(
    ("forge", "result"),
    [
        (lambda good: (good, 0), ZeResult.ERROR_INVALID_NULL_HANDLE),
        (lambda good: (good, good + 1), ZeResult.ERROR_INVALID_ARGUMENT),
        (lambda good: (good, good + (1 << 32)), ZeResult.ERROR_INVALID_ARGUMENT),
        (lambda good: (good, good ^ (3 << 56)), ZeResult.ERROR_INVALID_ARGUMENT),
        (lambda good: (good, good), ZeResult.ERROR_INVALID_ARGUMENT),
    ],
    ids=["null", "slot", "generation", "kind", "twice"],
)
def test_a_free_is_done_for_all_handles_or_none(daemon: Daemon, forge: object, result: ZeResult) -> None:
    assert callable(forge)
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        good = context.alloc(4096).handle
        assert wire.info(msg.MemFree(memory=forge(good))).result == result
        assert wire.ask(msg.ContextMemory(context=context.handle), msg.ContextMemoryIs).allocated == 4096
        wire.ask(msg.MemFree(memory=(good,)), msg.Ok)
        info = wire.info(msg.MemFree(memory=(good,)))
        assert "stale" in info.found


def test_a_handle_is_never_used_again(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        seen = set()
        for _ in range(200):
            handle = context.alloc(64).handle
            seen.add(handle)
            wire.ask(msg.MemFree(memory=(handle,)), msg.Ok)
    assert len(seen) == 200


def test_a_session_has_a_limit_of_contexts(driver: Driver) -> None:
    device = driver.devices[0]
    contexts = [device.create_context() for _ in range(driver.limits.contexts)]
    error = failure(device.create_context, ZeResult.ERROR_OUT_OF_HOST_MEMORY)
    assert str(driver.limits.contexts) in str(error)
    contexts.pop().destroy()
    check_works(device.create_context())


def test_pages_that_cannot_be_reserved_are_out_of_memory(
    driver: Driver, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for attempt in (lambda: context.alloc_host(MIB), lambda: context.create_command_queue(slots=4096)):
            error = failure(attempt, ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
            assert "segment of" in error.info.object
            assert "No space left" in error.info.found

    wait_until(lambda: context.query_memory()[1] == 0, what="the daemon has both back")
    assert driver.status().engines[0].queues == 0
    check_works(context)


def test_a_daemon_without_descriptors_refuses_and_recovers(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(patches={"rlimit:RLIMIT_NOFILE": 100})
    with Driver.open(daemon.socket) as innocent:
        context = innocent.devices[0].create_context()
        with Wire(daemon.socket) as greedy:
            greedy.hello()
            other = WireContext(greedy)
            request = msg.MemAlloc(context=other.handle, kind="host", size=MIB)
            answers = [greedy.answer(greedy.send(request)) for _ in range(150)]
            refused = [answer for answer in answers if isinstance(answer, msg.Failed)]
            assert refused
            assert refused[0].info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
            assert "descriptor" in refused[0].info.hint
            assert context.query_memory()[1] == 0
        wait_until(lambda: innocent.status().engines[0].memory_used == 0)
        check_works(context)
        context.alloc_host(4 * MIB)
    assert daemon.engine().restarts == 0
