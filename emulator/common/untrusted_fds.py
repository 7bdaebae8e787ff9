"""Descriptors from an untrusted sender: inspected and closed without blocking.

`fstat` and `close` may wait for the server of a FUSE or network file system, `close` also for the peer of a
TCP socket with SO_LINGER. Memory files are told by their seals, which the kernel answers without a file
system, and are closed at once if they have few pages: the last one of gigabytes takes seconds, as does the
last file of a tmpfs that is mounted nowhere any more. Everything else is closed in a thread: a close that
hangs holds no number.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Final

from softnpu.emulator.common import linux

NOBODY: Final = -1
"""Owner of descriptors whose sender is irrelevant."""
_NO_LINGER = struct.pack("ii", 0, 0)
_MOST_THREADS = 64  # of one owner: each hangs in at most one close
_MOST_WAITING = 64  # of which the oldest waits for longer than a close takes that does not hang
_HANGS_S = 1.0
_MOST_EVER_WAITING = 1024
_BLOCK = 512  # bytes of `st_blocks`
_FEW_BYTES = 16 << 20  # given back within some milliseconds


class _Closer:
    """One owner's descriptors to be closed, and the threads that close them, by number."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, float]] = deque()  # a descriptor, and since when
        self.threads: set[int] = set()


_STACK_SIZE = 256 << 10

_lock = threading.Lock()
_closers: dict[int, _Closer] = {}
_closing = threading.Event()
_table = -1


def has_socket(fds: Sequence[int]) -> bool:
    """Whether one of them is a socket."""
    return any(_is_socket(fd) for fd in fds)


def close_untrusted(fds: Sequence[int], owner: int = NOBODY) -> None:
    """Close all. `owner`: the user who sent them, whose descriptors never wait for another's."""
    slow = []
    for fd in fds:
        if _is_small_memory(fd):
            os.close(fd)
        else:
            slow.append(fd)
    if not slow:
        return
    with _lock:
        closer = _closers.setdefault(owner, _Closer())
        now = time.monotonic()
        closer.waiting.extend((fd, now) for fd in slow)
        if len(closer.threads) >= _MOST_THREADS:
            return
    # not `threading.Thread`, which waits for a thread that may not get the memory to begin
    with contextlib.suppress(RuntimeError, MemoryError):
        _thread.start_new_thread(_close_waiting, (owner, closer))
    _closing.set()


def prepare() -> None:
    """Start a thread that closes descriptors left by threads that died or could not start.

    Threads need little memory from now on, and `lacks_room` knows what there is.
    """
    global _table
    _device_of_memory_files()
    _table = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    threading.stack_size(_STACK_SIZE)
    threading.Thread(target=_close_stranded, name="closer", daemon=True).start()


def _close_stranded() -> None:
    while True:
        try:
            _closing.wait()
            _closing.clear()
            time.sleep(_HANGS_S)  # in which others have closed it, as a rule
            for owner, closer in [*_closers.items()]:
                if closer.waiting and len(closer.threads) < _MOST_THREADS:
                    _close_waiting(owner, closer)
        except Exception:  # noqa: BLE001  # there is no memory for it: it must go on
            _closing.set()
            time.sleep(_HANGS_S)


def lacks_room(count: int) -> bool:
    """Whether this process may not open `count` more descriptors.

    It may before `prepare`, and before Linux 6.2, which has their number in the size of the directory.
    """
    used = 0 if _table < 0 else os.fstat(_table).st_size  # a tenth of the time of a `stat` by path
    return used > 0 and used + count > resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def are_stuck(owner: int) -> bool:
    """Whether too many closings hang for this user to send more descriptors."""
    with _lock:
        closer = _closers.get(owner)
        if closer is None or len(closer.waiting) <= _MOST_WAITING:
            return False
        return len(closer.waiting) > _MOST_EVER_WAITING or time.monotonic() - closer.waiting[0][1] > _HANGS_S


def _close_waiting(owner: int, closer: _Closer) -> None:
    me = threading.get_ident()
    try:
        with _lock:
            closer.threads.add(me)
        while True:
            with _lock:
                if not closer.waiting:
                    return
                fd, _ = closer.waiting.popleft()
            try:
                _close(fd)
            except OSError:  # of a disk that is full; the number is free in any case
                continue
            except MemoryError:
                os.close(fd)
    finally:
        with _lock:
            closer.threads.discard(me)
            if not closer.threads and not closer.waiting and _closers.get(owner) is closer:
                del _closers[owner]


def _close(fd: int) -> None:
    # its owner may set SO_LINGER again in between, so this runs in a thread as well; what is no socket, or of
    # a family without addresses, has no data that anybody waits for
    with contextlib.suppress(OSError, MemoryError):
        one = socket.socket(fileno=fd)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        finally:
            one.detach()
    os.close(fd)


def _is_small_memory(fd: int) -> bool:
    if not linux.is_memory_file(fd):
        return False
    status = os.fstat(fd)
    try:
        return status.st_blocks * _BLOCK <= _FEW_BYTES and status.st_dev == _device_of_memory_files()
    except OSError:  # no descriptor to ask with
        return False


@cache
def _device_of_memory_files() -> int:
    """The file system of all memory files without huge pages; no user has mounted it, or ends it."""
    fd = os.memfd_create("", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _is_socket(fd: int) -> bool:
    try:
        one = socket.socket(fileno=fd)
    except OSError as error:
        return error.errno not in (errno.ENOTSOCK, errno.EBADF)
    one.detach()
    return True
