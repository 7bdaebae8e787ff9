"""Descriptors that somebody else gave: closed without waiting for him.

Closing the last descriptor of a TCP socket waits until its bytes are delivered, if its owner has asked for
that (SO_LINGER) and sees to it that nobody reads them. Nothing in the interface takes a socket, so they are
refused early, and closed where nobody waits.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Sequence

_NO_LINGER = struct.pack("ii", 0, 0)


def has_socket(fds: Sequence[int]) -> bool:
    """Whether one of them is a socket."""
    return any(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in fds)


def close_untrusted(fds: Sequence[int]) -> None:
    """Closes all; never waits for what a socket has still to send."""
    sockets = []
    for fd in fds:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            sockets.append(fd)
        else:
            os.close(fd)
    if sockets:
        # also without the wait: its owner may ask for it again in between
        threading.Thread(target=_close_sockets, args=(sockets,), name="closer", daemon=True).start()


def _close_sockets(fds: Sequence[int]) -> None:
    for fd in fds:
        one = socket.socket(fileno=fd)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        finally:
            one.close()
