"""Files of clients that the supervisor keeps for later: in the queue of a socket, not in its own table.

A process that is started closes what it inherits, and closing a file whose server does not answer hangs: the
new process, and the supervisor that waits for it. What lies in the queue of a socket is not inherited, and is
dropped without asking its file system. Memory files need none of that and stay as they are.
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


def park(fds: Sequence[int], owner: int) -> list[int]:
    """Take descriptors of a client over; what is returned is theirs in the same order, for `borrowed`.

    Memory files and what is parked already stay. Raises `OSError`, with all of them closed.
    """
    parked: list[int] = []
    try:
        for fd in fds:
            is_parked = linux.is_memory_file(fd) or has_socket((fd,))  # no client's socket comes so far
            parked.append(fd if is_parked else _park(fd, owner))
    except OSError:
        close_untrusted([*parked, *fds[len(parked) :]], owner)
        raise
    return parked


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
                taken.append(_look(fd))
                files.append(taken[-1])
        yield files
    finally:
        close_untrusted(taken, owner)


def _park(fd: int, owner: int) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        socket.send_fds(theirs, [b"\0"], [fd])
        close_untrusted((fd,), owner)
        return ours.detach()


def _look(parked: int) -> int:
    """A duplicate of the one descriptor in the queue of a socket, where it stays."""
    queue = socket.socket(fileno=parked)
    try:
        flags = socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        _, ancillary, _, _ = queue.recvmsg(1, _ROOM, flags)
    finally:
        queue.detach()
    if not ancillary:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    fd: int = array.array("i", ancillary[0][2])[0]
    return fd
