"""Client files that the supervisor keeps in a socket's queue instead of its descriptor table.

A new process closes inherited descriptors, and closing a file whose server does not answer hangs the new
process, and the supervisor that waits for it. Files in a socket's queue are not inherited, and are dropped
without asking their file system. Memory files need none of this and stay where they are.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from softnpu.emulator.common import linux
from softnpu.emulator.common.untrusted_fds import close_untrusted, has_socket

_ROOM = socket.CMSG_SPACE(array.array("i").itemsize)
_LOOK = socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT


def park(fds: list[int], owner: int) -> None:
    """Replace a client's descriptors by parked files, for `borrowed`; raises `OSError`.

    Memory files and what is parked already stay.
    """
    replaced: list[int] = []
    try:
        for at, fd in enumerate(fds):
            if not (linux.is_memory_file(fd) or has_socket((fd,))):  # no client's socket comes so far
                fds[at], replaced[:] = _park(fd), [*replaced, fd]
    finally:
        close_untrusted(replaced, owner)


@contextmanager
def borrowed(parked: Sequence[int], owner: int) -> Iterator[list[int]]:
    """Descriptors of the parked files, closed after the block. Raises `OSError`."""
    files: list[int] = []
    taken: list[int] = []
    try:
        for fd in parked:
            if linux.is_memory_file(fd):
                files.append(fd)
            else:
                _look(fd, taken)
                files.append(taken[-1])
        yield files
    finally:
        close_untrusted(taken, owner)


def _park(fd: int) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        socket.send_fds(theirs, [b"\0"], [fd])
        return ours.detach()


def _look(parked: int, into: list[int]) -> None:
    """Add a duplicate of the one descriptor in the queue of a socket, where it stays."""
    before, queue = len(into), socket.socket(fileno=parked)
    try:
        into += [fd for _, _, data in queue.recvmsg(1, _ROOM, _LOOK)[1] for fd in array.array("i", data)]
    finally:
        queue.detach()
    if len(into) == before:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
