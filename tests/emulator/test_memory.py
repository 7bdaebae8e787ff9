"""Device memory: valid requests, costs, quotas, and reclaim."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import resource
from contextlib import suppress

import pytest

from softnpu.driver import Context, Driver, ZeResult
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
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


def test_memory_beyond_the_limit_of_file_sizes_is_refused_and_the_session_goes_on(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (8 * MIB, 8 * MIB))
        error = failure(lambda: context.alloc_host(16 * MIB), ZeResult.ERROR_OUT_OF_HOST_MEMORY)
        assert "ulimit -f" in str(error)
        check_works(context)


@pytest.mark.parametrize("end", ["free", "destroy", "death"])
def test_large_memory_is_kept_until_no_engine_maps_it(start_daemon: StartDaemon, end: str) -> None:
    """Who has the last hold of gigabytes gives them back for a second: that is a thread, not the engine."""
    daemon = start_daemon(tdr_ms=600_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        memory = context.alloc_host(32 * MIB)
        assert _large_segments(daemon) == 1
        with daemon.stopped_engine():
            match end:
                case "free":
                    memory.destroy()
                case "destroy":
                    context.destroy()
                case "death":
                    driver.destroy()
                    wait_until(lambda: not daemon.status().session_count)
            assert daemon.status().engines[0].state == "ready"
            assert _large_segments(daemon) == 1
        wait_until(lambda: not _large_segments(daemon), what="the end of its segment")


def _large_segments(daemon: Daemon) -> int:
    """Return how many segments of 16 MiB or more the supervisor has."""
    sizes = []
    for entry in os.scandir(f"/proc/{daemon.pid}/fd"):
        with suppress(FileNotFoundError):
            if "softnpu-memory" in os.readlink(entry.path):
                sizes.append(os.stat(entry.path).st_size)
    return sum(size >= 16 * MIB for size in sizes)


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
    daemon = start_daemon(open_files=100)
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


def test_sparse_memory_counts_by_its_pages_and_a_session_that_uses_too_much_is_ended(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(memory=24 * MIB, session_memory=8 * MIB)
    with Wire(daemon.socket) as greedy, Wire(daemon.socket) as other:
        greedy.hello()
        other.hello()
        one, two = WireContext(greedy), WireContext(other)
        large = one.alloc(1 << 40, sparse=True)
        assert one.request_memory().allocated == 0
        large.write(b"x" * (6 * MIB), at=1 << 39)
        assert one.request_memory().allocated == 6 * MIB
        info = greedy.info(msg.MemAlloc(context=one.handle, kind="host", size=3 * MIB))
        assert info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        large.write(b"x" * (3 * MIB))
        for _ in range(5):
            greedy.send(msg.ContextMemory(context=one.handle))  # queries do not hide the growth
        number, ended = greedy.receive()
        while number:
            number, ended = greedy.receive()
        assert isinstance(ended, msg.Failed)
        assert ended.info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        assert f"{9 * MIB}" in ended.info.found
        wait_until(lambda: two.request_memory().allocated == daemon.memory_used() == 0)
        two.check_works()


def test_sparse_memory_leaves_the_engine_its_address_space(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(memory=24 * MIB)
    with Wire(daemon.socket) as first, Wire(daemon.socket) as second:
        first.hello()
        second.hello()
        one, two = WireContext(first), WireContext(second)
        memory = [one.alloc(4 << 40, sparse=True) for _ in range(4)]
        info = first.info(msg.MemAlloc(context=one.handle, kind="host", size=1 << 20, sparse=True))
        assert info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        assert "address space" in info.found
        first.ask(msg.MemFree(memory=(memory[0].handle,)), msg.Ok)
        one.alloc(4 << 40, sparse=True)
        one.check_works()
        two.alloc(16 << 40, sparse=True)
        first.ask(msg.ContextDestroy(context=one.handle), msg.Ok)
        WireContext(first).alloc(16 << 40, sparse=True)
        two.check_works()
    assert daemon.engine().restarts == 0


def test_freed_sparse_memory_counts_as_long_as_a_submission_may_use_it(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(memory=24 * MIB, tdr_ms=60_000)
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        large, gate = context.alloc(16 << 40, sparse=True), context.alloc(4096, "control")
        buffer, queue = context.alloc(4096, "control"), context.queue()
        at = MemoryAt(large.handle, 1 << 43)
        commands: list[cmd.Command] = [cmd.EventWait(MemoryAt(gate.handle, 0)), cmd.Fill(at, 64, b"\x01")]
        data = cmd.encode_buffer([cmd.encode_command(command) for command in commands])
        buffer.write(data)
        queue.submit(buffer, len(data))
        context.check_works()  # by now the engine has decoded the earlier submissions
        wire.ask(msg.MemFree(memory=(large.handle,)), msg.Ok)
        info = wire.info(msg.MemAlloc(context=context.handle, kind="host", size=1 << 40, sparse=True))
        assert info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        wire.ask(msg.QueueDestroy(queue=queue.handle), msg.Ok)
        context.alloc(16 << 40, sparse=True)
        context.check_works()
    assert daemon.engine().restarts == 0


def test_a_session_has_so_many_sparse_allocations(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(memory=24 * MIB)
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        for _ in range(256):
            context.alloc(1 << 20, sparse=True)
        info = wire.info(msg.MemAlloc(context=context.handle, kind="host", size=1, sparse=True))
        assert info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        assert "256 sparse allocations" in info.found
        context.check_works()


@pytest.mark.quick
def test_allocations_lie_apart_share_descriptors_and_use_freed_memory_again(
    shared_daemon: Daemon, context: Context
) -> None:
    here, there, (total, before) = descriptors_of(os.getpid()), shared_daemon.fd_count, context.query_memory()
    memory = [context.alloc_host(64 + 16 * (number % 100)) for number in range(1000)]
    memory += [
        getattr(context, kind)(size, alignment)
        for kind in ("alloc_host", "alloc_device", "alloc_shared")
        for alignment in (0, 1, 64, 4096)
        for size in (1, 63, 4097, 256 * 1024 + 1)
    ]
    ends = sorted((entry.address, entry.address + entry.size) for entry in memory)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    large = sum(entry.size > 256 * 1024 for entry in memory)
    assert descriptors_of(os.getpid()) - here < large + 10
    assert shared_daemon.fd_count - there < large + 10
    assert context.query_memory() == (total, before + sum(entry.size for entry in memory))
    for entry in memory:
        entry.destroy()
    assert context.query_memory() == (total, before)
    for _ in range(200):
        context.alloc_host(100_000).destroy()
    assert len(context._memory._segments) < 4


def test_a_segment_cannot_change_its_size_and_is_no_other_sessions(wire: Wire, other_wire: Wire) -> None:
    context = WireContext(wire)
    context.alloc(4096).write(b"secret")
    segment = wire.take_fd()
    size = os.fstat(segment).st_size
    for changed in (0, size - 4096, size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(segment, changed)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert b"secret" not in WireContext(other_wire).alloc(4096).mapping.buffer[:]


def test_a_free_is_done_for_all_handles_or_none_and_handles_are_never_used_again(
    wire: Wire, wire_context: WireContext
) -> None:
    seen = set()
    invalid = ZeResult.ERROR_INVALID_ARGUMENT
    for bits in (-1, 1, 1 << 32, 3 << 56, 0):  # null, slot, generation, kind, twice the same
        good = wire_context.alloc(4096).handle
        bad = 0 if bits < 0 else good ^ bits
        expected = invalid if bad else ZeResult.ERROR_INVALID_NULL_HANDLE
        assert wire.info(msg.MemFree(memory=(good, bad))).result == expected
        assert wire_context.request_memory().allocated == 4096
        wire.ask(msg.MemFree(memory=(good,)), msg.Ok)
        assert "stale" in wire.info(msg.MemFree(memory=(good,))).found
        seen.add(good)
    assert len(seen) == 5
