"""Kernel facts that the interface relies on: futexes between processes, seals, parent death."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from softnpu.emulator.common import linux
from tests.support.waiting import DEADLINE_S, wait_asleep, wait_readable, wait_until

pytestmark = pytest.mark.quick

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
    """Return the child's next line, b"" at its end; fail after the deadline."""
    assert process.stdout is not None
    assert wait_readable(process.stdout.fileno()), "the child said nothing before the deadline"
    return process.stdout.readline()


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
from softnpu.emulator.common import linux
mapping = linux.map_shared(int(sys.argv[1]), {_SIZE})
print("mapped", flush=True)
linux.futex_wait(linux.address_of(mapping) + 8, 0, {_LONG_NS})
print("awake", mapping[8], flush=True)
"""


def test_a_word_that_changed_before_the_wait_ends_it_at_once(shared: tuple[int, mmap.mmap]) -> None:
    shared[1][8] = 4
    linux.futex_wait(linux.address_of(shared[1]) + 8, 0, _LONG_NS)


def test_one_wake_wakes_all_waiters(shared: tuple[int, mmap.mmap]) -> None:
    fd, mapping = shared
    with _child(_WAITER, fd, fds=(fd,)) as first, _child(_WAITER, fd, fds=(fd,)) as second:
        for waiter in (first, second):
            assert _line(waiter) == b"mapped\n"
            wait_asleep(waiter.pid)
        linux.futex_wake(linux.address_of(mapping) + 8)
        for waiter in (first, second):
            assert _line(waiter) == b"awake 0\n"


def test_other_threads_run_during_a_wait(shared: tuple[int, mmap.mmap]) -> None:
    address = linux.address_of(shared[1])
    done = threading.Event()

    def wait() -> None:
        linux.futex_wait(address, 0, _LONG_NS)
        done.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()

    def woken() -> bool:
        linux.futex_wake(address)  # returns 1 only once the thread sleeps
        return done.wait(0.001)

    wait_until(woken, what="the end of the wait")
    waiter.join(DEADLINE_S)


@pytest.mark.parametrize(
    ("expected", "timeout_ns"), [(0, 20_000_000), (1 << 32, 20_000_000), (0, 0), (0, -1)]
)
def test_a_wait_ends_at_its_time_out(shared: tuple[int, mmap.mmap], expected: int, timeout_ns: int) -> None:
    """Nothing changes the word, nothing wakes, and yet the wait ends. The word is compared modulo 2^32."""
    linux.futex_wait(linux.address_of(shared[1]), expected, timeout_ns)


def test_a_wait_on_unmapped_memory_names_the_address() -> None:
    with pytest.raises(OSError, match="futex wait on 0x1000") as caught:
        linux.futex_wait(0x1000, 0, _LONG_NS)
    assert caught.value.errno == errno.EFAULT


def test_a_memory_fence_can_be_issued_anywhere() -> None:
    # also while another thread, or this one under a signal handler, is inside a fence
    linux.memory_fence()
    with linux._fence_lock:
        linux.memory_fence()


# ---------------------------------------------------------------- seals


def test_a_memory_file_of_fixed_size_cannot_be_resized_and_can_be_reserved(
    shared: tuple[int, mmap.mmap],
) -> None:
    fd, _ = shared
    assert not linux.has_seals(fd, linux.SEALS_FIXED_SIZE)
    linux.seal(fd, linux.SEALS_FIXED_SIZE)
    assert linux.has_seals(fd, linux.SEALS_FIXED_SIZE)
    assert not linux.has_seals(fd, linux.SEALS_IMMUTABLE)
    for size in (0, _SIZE - 1, _SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        linux.seal(fd, linux.SEALS_IMMUTABLE)
    os.pwrite(fd, b"still writable", 0)
    os.posix_fallocate(fd, 0, _SIZE)
    assert os.fstat(fd).st_blocks * 512 == _SIZE


def test_a_sealed_copy_has_the_content_and_refuses_every_change() -> None:
    fd = linux.sealed_copy("test", b"content" * 1000)
    try:
        assert os.pread(fd, 10_000, 0) == b"content" * 1000
        for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 1)):
            with pytest.raises(PermissionError):
                change()
        with pytest.raises(PermissionError):
            linux.map_shared(fd, 7000)
        with mmap.mmap(fd, 7000, prot=mmap.PROT_READ) as mapping:
            assert mapping[:7] == b"content"
    finally:
        os.close(fd)


def test_a_writably_mapped_file_cannot_become_immutable_and_a_pipe_has_no_seals(
    shared: tuple[int, mmap.mmap],
) -> None:
    with pytest.raises(OSError, match="busy") as caught:
        linux.seal(shared[0], linux.SEALS_IMMUTABLE)
    assert caught.value.errno == errno.EBUSY
    pipe = os.pipe()
    assert not linux.has_seals(pipe[0], linux.SEALS_FIXED_SIZE)
    for fd in pipe:
        os.close(fd)


# ---------------------------------------------------------------- parent death

_ORPHAN = """
import os, sys
from softnpu.emulator.common import linux
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
            assert wait_readable(reader)
            assert os.read(reader, 100) == b"bound\n"
            parent.send_signal(signal.SIGKILL)
            assert parent.wait(DEADLINE_S) == -signal.SIGKILL
            assert wait_readable(reader), "the child lives on without its parent"
            assert os.read(reader, 100) == b"", "the pipe ends with its last writer"
    finally:
        for fd in (reader, hold, blocker):
            os.close(fd)


def test_a_child_whose_parent_has_already_ended_ends_at_once() -> None:
    code = """
import os
from softnpu.emulator.common import linux
linux.die_with_parent(os.getppid() + 1)
print("lived", flush=True)
"""
    with _child(code) as orphan:
        assert orphan.wait(DEADLINE_S) == 0
        assert _line(orphan) == b""
