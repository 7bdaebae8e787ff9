"""Descriptors from an untrusted sender: closed without blocking.

Closing the last descriptor of a TCP socket waits until its bytes are delivered, if its owner has set
SO_LINGER and does not read them. No message accepts a socket, so sockets are refused early, and closed in a
thread.
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
    """Close all, without waiting for unsent data of sockets."""
    sockets = []
    for fd in fds:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            sockets.append(fd)
        else:
            os.close(fd)
    if sockets:
        # the owner may set SO_LINGER again in between, so this runs in a thread as well
        threading.Thread(target=_close_sockets, args=(sockets,), name="closer", daemon=True).start()


def _close_sockets(fds: Sequence[int]) -> None:
    for fd in fds:
        one = socket.socket(fileno=fd)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        finally:
            one.close()
