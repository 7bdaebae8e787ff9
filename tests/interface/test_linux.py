"""Kernel facts that the interface relies on: futexes between processes, seals, parent death."""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softnpu.emulator.common import linux

_DEADLINE_S = 10.0
_LONG_NS = 60_000_000_000
_SIZE = 4096


@contextmanager
def _child(code: str, *args: int, fds: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that runs `code`; dead at the end of the block whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=fds,
        bufsize=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        # closed, not read to the end: a grandchild that should be dead may still hold the other end
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of the child, b"" at its end; fails after the deadline."""
    assert process.stdout is not None
    assert _readable(process.stdout.fileno(), _DEADLINE_S), "the child said nothing before the deadline"
    return process.stdout.readline()


def _readable(fd: int, timeout_s: float) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


def _await_sleep(pid: int) -> None:
    """Returns once the only thread of a process sleeps (state S in /proc/PID/stat)."""
    deadline = time.monotonic() + _DEADLINE_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, f"process {pid} does not go to sleep"
        os.sched_yield()


@pytest.fixture
def shared() -> Iterator[tuple[int, mmap.mmap]]:
    fd = linux.memfd("test", _SIZE)
    mapping = linux.map_shared(fd, _SIZE)
    try:
        yield fd, mapping
    finally:
        mapping.close()
        os.close(fd)


# ---------------------------------------------------------------- futex

_WAITER = f"""
import sys
from softnpu.emulator.interface import linux
mapping = linux.map_shared(int(sys.argv[1]), {_SIZE})
print("mapped", flush=True)
linux.futex_wait(linux.address_of(mapping) + 8, 0, {_LONG_NS})
print("awake", mapping[8], flush=True)
"""


def test_a_wake_ends_the_wait_of_another_process(shared: tuple[int, mmap.mmap]) -> None:
    fd, mapping = shared
    with _child(_WAITER, fd, fds=(fd,)) as waiter:
        assert _line(waiter) == b"mapped\n"
        assert waiter.stdout is not None
        # the word stays 0: only a wake can end the wait, and it counts only once the child sleeps
        deadline = time.monotonic() + _DEADLINE_S
        while not _readable(waiter.stdout.fileno(), 0.001):
            assert time.monotonic() < deadline, "wakes did not reach the other process"
            linux.futex_wake(linux.address_of(mapping) + 8)
        assert _line(waiter) == b"awake 0\n"


def test_a_word_that_changed_before_the_wait_ends_it_at_once(shared: tuple[int, mmap.mmap]) -> None:
    fd, mapping = shared
    mapping[8] = 4
    with _child(_WAITER, fd, fds=(fd,)) as waiter:
        assert _line(waiter) == b"mapped\n"
        assert _line(waiter) == b"awake 4\n"


def test_one_wake_wakes_all_waiters(shared: tuple[int, mmap.mmap]) -> None:
    fd, mapping = shared
    with _child(_WAITER, fd, fds=(fd,)) as first, _child(_WAITER, fd, fds=(fd,)) as second:
        for waiter in (first, second):
            assert _line(waiter) == b"mapped\n"
            _await_sleep(waiter.pid)
        linux.futex_wake(linux.address_of(mapping) + 8)
        for waiter in (first, second):
            assert _line(waiter) == b"awake 0\n"


def test_a_wait_lets_other_threads_of_the_process_run(shared: tuple[int, mmap.mmap]) -> None:
    address = linux.address_of(shared[1])
    done = threading.Event()

    def wait() -> None:
        linux.futex_wait(address, 0, _LONG_NS)
        done.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    deadline = time.monotonic() + _DEADLINE_S
    while not done.wait(0.001):
        assert time.monotonic() < deadline, "the waiting thread kept the interpreter lock or was not woken"
        linux.futex_wake(address)
    waiter.join(_DEADLINE_S)


def test_a_wait_ends_at_its_time_out(shared: tuple[int, mmap.mmap]) -> None:
    start = time.monotonic()
    linux.futex_wait(linux.address_of(shared[1]), 0, 20_000_000)
    assert 0.02 <= time.monotonic() - start < _DEADLINE_S


@pytest.mark.parametrize("timeout_ns", [0, -1])
def test_a_wait_without_time_does_not_sleep(shared: tuple[int, mmap.mmap], timeout_ns: int) -> None:
    linux.futex_wait(linux.address_of(shared[1]), 0, timeout_ns)


def test_the_expected_value_is_taken_modulo_32_bits(shared: tuple[int, mmap.mmap]) -> None:
    start = time.monotonic()
    linux.futex_wait(linux.address_of(shared[1]), 1 << 32, 20_000_000)
    assert time.monotonic() - start >= 0.02


def test_a_wait_on_no_memory_says_which_address() -> None:
    with pytest.raises(OSError, match="futex wait on 0x1000") as caught:
        linux.futex_wait(0x1000, 0, _LONG_NS)
    assert caught.value.errno == errno.EFAULT


def test_a_fence_can_be_asked_for_anywhere() -> None:
    # also while another thread, or this one under a signal handler, is inside a fence
    linux.memory_fence()
    with linux._fence_lock:
        linux.memory_fence()


# ---------------------------------------------------------------- seals


def test_a_memory_file_of_fixed_size_refuses_another_size() -> None:
    fd = linux.memfd("test", _SIZE)
    try:
        linux.seal(fd, linux.SEALS_FIXED_SIZE)
        for size in (0, _SIZE - 1, _SIZE + 1):
            with pytest.raises(PermissionError) as caught:
                os.ftruncate(fd, size)
            assert caught.value.errno == errno.EPERM
        with pytest.raises(PermissionError):
            linux.seal(fd, linux.SEALS_IMMUTABLE)
        os.pwrite(fd, b"still writable", 0)
    finally:
        os.close(fd)


def test_pages_of_a_sealed_file_can_still_be_reserved() -> None:
    fd = linux.memfd("test", 4 * _SIZE)
    try:
        linux.seal(fd, linux.SEALS_FIXED_SIZE)
        os.posix_fallocate(fd, 0, 4 * _SIZE)
        assert os.fstat(fd).st_blocks * 512 == 4 * _SIZE
        assert os.fstat(fd).st_size == 4 * _SIZE
    finally:
        os.close(fd)


def test_a_sealed_copy_has_the_content_and_refuses_every_change() -> None:
    fd = linux.sealed_copy("test", b"content" * 1000)
    try:
        assert os.pread(fd, 10_000, 0) == b"content" * 1000
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1)
        with pytest.raises(PermissionError):
            linux.map_shared(fd, 7000)
        with mmap.mmap(fd, 7000, prot=mmap.PROT_READ) as mapping:
            assert mapping[:7] == b"content"
    finally:
        os.close(fd)


def test_a_file_that_is_mapped_writable_cannot_become_immutable(shared: tuple[int, mmap.mmap]) -> None:
    with pytest.raises(OSError, match="busy") as caught:
        linux.seal(shared[0], linux.SEALS_IMMUTABLE)
    assert caught.value.errno == errno.EBUSY
    assert not linux.has_seals(shared[0], linux.SEALS_FIXED_SIZE)


def test_seals_are_seen_one_by_one_and_a_pipe_has_none() -> None:
    fd = linux.memfd("test", _SIZE)
    reader, writer = os.pipe()
    try:
        assert not linux.has_seals(fd, linux.SEALS_FIXED_SIZE)
        linux.seal(fd, linux.SEALS_FIXED_SIZE)
        assert linux.has_seals(fd, linux.SEALS_FIXED_SIZE)
        assert not linux.has_seals(fd, linux.SEALS_IMMUTABLE)
        assert not linux.has_seals(reader, linux.SEALS_FIXED_SIZE)
    finally:
        for each in (fd, reader, writer):
            os.close(each)


def test_seal_numbers_are_the_kernels() -> None:
    assert (linux.SEALS_FIXED_SIZE, linux.SEALS_IMMUTABLE) == (0x7, 0xF)


def test_two_processes_see_the_same_memory(shared: tuple[int, mmap.mmap]) -> None:
    fd, mapping = shared
    code = (
        "import sys; from softnpu.emulator.interface import linux\n"
        f"linux.map_shared(int(sys.argv[1]), {_SIZE})[5] = 42"
    )
    with _child(code, fd, fds=(fd,)) as writer:
        assert writer.wait(_DEADLINE_S) == 0
    assert mapping[5] == 42


# ---------------------------------------------------------------- parent death

_ORPHAN = """
import os, sys
from softnpu.emulator.interface import linux
linux.die_with_parent(int(sys.argv[1]))
os.write(int(sys.argv[2]), b"bound\\n")
os.read(int(sys.argv[3]), 1)
os.write(int(sys.argv[2]), b"survived\\n")
"""
_PARENT = f"""
import os, subprocess, sys
out, hold = int(sys.argv[1]), int(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", {_ORPHAN!r}, str(os.getpid()), str(out), str(hold)],
                         pass_fds=(out, hold))
os.close(out)
child.wait()
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    reader, out = os.pipe()
    hold, blocker = os.pipe()  # the grandchild reads `hold`: it ends by a signal or never
    try:
        with _child(_PARENT, out, hold, fds=(out, hold)) as parent:
            os.close(out)
            assert _readable(reader, _DEADLINE_S)
            assert os.read(reader, 100) == b"bound\n"
            parent.send_signal(signal.SIGKILL)
            assert parent.wait(_DEADLINE_S) == -signal.SIGKILL
            assert _readable(reader, _DEADLINE_S), "the child lives on without its parent"
            assert os.read(reader, 100) == b"", "the pipe ends with its last writer"
    finally:
        for fd in (reader, hold, blocker):
            os.close(fd)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    code = """
import os
from softnpu.emulator.interface import linux
linux.die_with_parent(os.getppid() + 1)
print("lived", flush=True)
"""
    with _child(code) as orphan:
        assert orphan.wait(_DEADLINE_S) == 0
        assert _line(orphan) == b""
