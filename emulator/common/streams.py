"""Descriptors beside the standard streams, which may be closed. It imports little."""

from __future__ import annotations

import fcntl
import os

LAST = 2
"""The descriptor of the last standard stream."""


def above_streams(fd: int) -> int:
    """This descriptor, or one from 3 on in its place: whoever prints would write into a lower one."""
    if fd > LAST:
        return fd
    try:
        return duplicate(fd)
    finally:
        os.close(fd)


def duplicate(fd: int) -> int:
    """Return a duplicate from 3 on, closed in programs that this one starts."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LAST + 1)


def open_streams() -> list[int]:
    """Open /dev/null for the standard streams that are closed; programs that are started find them closed."""
    opened: list[int] = []
    while (fd := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) <= LAST:
        opened.append(fd)
    os.close(fd)
    return opened
