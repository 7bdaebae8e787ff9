"""The socket of a helper for kernels: through it a process of a client gets channels to engines."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Mapping
from typing import Final

from softnpu.emulator.interface.result import ZeResult, refuse

_MOST: Final = 16
_NAME_BYTES: Final = 16


class HelperSocket:
    """Our end. `name` is known to the client, its blobs and its engine only."""

    def __init__(self, end: socket.socket) -> None:
        import secrets  # late: few sessions have helpers

        self.name = secrets.token_hex(_NAME_BYTES)
        self._end = end

    @classmethod
    def open(cls) -> tuple[HelperSocket, socket.socket]:
        """Return ours, and the client's end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        return cls(ours), theirs

    def send(self, channel: socket.socket) -> None:
        """Send a descriptor, unless the client has not read the one before, or is gone."""
        (unread,) = struct.unpack("i", fcntl.ioctl(self._end.fileno(), termios.TIOCOUTQ, bytes(4)))
        if not unread:
            with contextlib.suppress(OSError):
                socket.send_fds(self._end, [b"\0"], [channel.fileno()])

    def close(self) -> None:
        """End it; harmless when repeated."""
        self._end.close()


def check_room(sockets: Mapping[str, HelperSocket]) -> None:
    """Refuse one more than a context may have."""
    if len(sockets) >= _MOST:
        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "kernel helper",
            found=f"{len(sockets)} of this context",
            expected=f"at most {_MOST}",
        )
