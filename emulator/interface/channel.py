"""A connected SOCK_SEQPACKET socket that carries frames and file descriptors.

The channel owns each received descriptor until the receiver takes it, so a refused frame never leaks one.
"""

from __future__ import annotations

import array
import contextlib
import select
import socket
from collections.abc import Sequence
from types import TracebackType

from softnpu.emulator.common import streams
from softnpu.emulator.common.untrusted_fds import NOBODY, close_untrusted, has_socket, lacks_room
from softnpu.emulator.interface import frames
from softnpu.emulator.interface.result import ZeResult, refuse

# room for all that the kernel sends at once: it closes what does not fit, and closing a socket may wait
_FD_SIZE = array.array("i").itemsize
_MOST_FDS = 253
_CREDENTIALS_SIZE = 12
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS_SIZE) + socket.CMSG_SPACE(_MOST_FDS * _FD_SIZE)
_NOTHING = memoryview(b"")


class Packet:
    """One received frame: request id, body, and the descriptors that came with it.

    As a context manager it closes descriptors that were not taken at the end of the block.
    """

    __slots__ = ("_fds", "_owner", "body", "request")

    def __init__(self, request: int, body: memoryview, fds: list[int], owner: int = NOBODY) -> None:
        self._owner = owner
        self.request = request
        self.body = body
        self._fds = fds

    def __enter__(self) -> Packet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fd_count(self) -> int:
        return len(self._fds)

    def take_fds(self, expected: int) -> list[int]:
        """Hand over exactly `expected` descriptors; refuse another number."""
        self.check_fds(expected)
        fds, self._fds = self._fds, []
        return fds

    def check_fds(self, expected: int) -> list[int]:
        """The list of its descriptors, whose owner it stays; refuse another number than `expected`."""
        if len(self._fds) != expected:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "control frame",
                found=f"{len(self._fds)} descriptors",
                expected=f"{expected}",
            )
        return self._fds

    def taken(self) -> Packet:
        """Move this packet, with its descriptors, into a new one, and return it."""
        return Packet(self.request, self.body, self.take_fds(self.fd_count), self._owner)

    def refuse_sockets(self) -> None:
        """Refuse sockets: no message accepts them."""
        if self._fds and has_socket(self._fds):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "control frame",
                found="the descriptor of a socket",
                expected="files and memory files",
            )

    def close(self) -> None:
        """Close the descriptors that were not taken."""
        fds, self._fds = self._fds, []
        if fds:
            close_untrusted(fds, self._owner)


class Channel:
    """Frames over one socket. One thread may send while another receives.

    `owner`: the user at the other end, once known, for whom untrusted descriptors are closed.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.owner = NOBODY
        self._socket = sock
        self._has_unread = False

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 after `close`."""
        return self._socket.fileno()

    def send(self, request: int, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame; the kernel duplicates the descriptors, and the caller keeps its own.

        Raises `BlockingIOError` when the socket is non-blocking and full, `ConnectionError` when the peer is
        gone.
        """
        frame = frames.encode(request, body, len(fds))
        if fds:
            rights = array.array("i", fds)
            self._socket.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        else:
            self._socket.send(frame)

    def receive(self) -> Packet | None:
        """The next frame, or None when the peer has closed. A malformed frame is refused.

        `MemoryError`: there is no memory for it, and it is still to be received.
        """
        try:
            data, ancillary, flags = self._receive_packet()
        except ConnectionResetError:
            return None
        fds: list[int] = []
        packet = Packet(0, _NOTHING, fds, self.owner)
        try:
            _add_descriptors(ancillary, fds)
            fds[:] = map(streams.above_streams, fds)
            if not data and not fds:
                return None
            if flags & socket.MSG_TRUNC or len(data) > frames.MAX_FRAME:
                raise refuse(
                    ZeResult.ERROR_INVALID_SIZE,
                    "control frame",
                    found=f"more than {frames.MAX_FRAME} bytes",
                    expected=f"at most {frames.MAX_FRAME}",
                )
            if self._has_unread:
                raise refuse(
                    ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                    "control frame",
                    found="more descriptors than the receiver has room for",
                    expected=f"at most {len(fds)} descriptors at the moment",
                    hint="raise the descriptor limit of the daemon, or use fewer objects",
                )
            if flags & socket.MSG_CTRUNC:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    "control frame",
                    found="descriptors were lost on the way",
                    expected=f"at most {frames.MAX_FDS} descriptors and room for them in the receiver",
                )
            if len(fds) > frames.MAX_FDS:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    "control frame",
                    found=f"{len(fds)} descriptors",
                    expected=f"at most {frames.MAX_FDS}",
                )
            packet.request, packet.body = frames.decode(data, len(fds))
        except MemoryError:
            packet.close()
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "control frame",
                found="no memory to take it in",
                expected=f"memory for {len(data)} bytes and {len(fds)} descriptors",
            ) from None
        except BaseException:
            packet.close()
            raise
        return packet

    def _receive_packet(self) -> tuple[bytes, list[tuple[int, int, bytes]], int]:
        size, options = frames.MAX_FRAME + 1, socket.MSG_CMSG_CLOEXEC
        if self.owner != NOBODY and lacks_room(_MOST_FDS):
            return self._receive_carefully(size, options)
        try:
            return self._socket.recvmsg(size, _ANCILLARY, options)[:3]
        except ConnectionResetError:
            # when the peer closes before reading all frames, the kernel reports that once, ahead of the
            # peer's own last frames (a refusal, say), which can still be read
            return self._socket.recvmsg(size, _ANCILLARY, options)[:3]

    def _receive_carefully(self, size: int, options: int) -> tuple[bytes, list[tuple[int, int, bytes]], int]:
        """As `_receive_packet`, with hardly a descriptor free.

        What has no room the kernel closes, and closing what a stranger has sent may take a minute. So a frame
        is taken from the queue once all of its descriptors are here, or never.
        """
        data, ancillary, flags, _ = self._socket.recvmsg(size, _ANCILLARY, options | socket.MSG_PEEK)
        if flags & socket.MSG_CTRUNC:
            self._has_unread = True
        else:
            self._socket.recv(1)
        return data, ancillary, flags

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Return whether a frame, or the end of the peer, arrives within `timeout_s` (None waits forever)."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else max(0, timeout_s * 1000)))

    def peer_gone(self) -> bool:
        """Return whether the peer has closed its end, without waiting or reading."""
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def discard(self) -> None:
        """Drop unread frames with their descriptors, then close: closing a socket with some may wait."""
        self.drain()
        self.close()

    def drain(self) -> None:
        """Read no more, and drop what has come, whatever that is; what cannot be dropped `close` knows of."""
        fds: list[int] = []
        try:
            self._socket.shutdown(socket.SHUT_RD)
            # from now on every message comes with credentials, also an empty one: the end has none
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            while not self._has_unread:
                _, ancillary, _ = self._receive_packet()
                if not ancillary:
                    return
                _add_descriptors(ancillary, fds)
                close_untrusted(fds, self.owner)
                fds.clear()
        except (OSError, MemoryError):
            self._has_unread = True

    def end_sending(self) -> None:
        """Let the peer see the end of the connection; `peer_gone` tells when it has closed its own."""
        with contextlib.suppress(OSError):  # the peer is gone
            self._socket.shutdown(socket.SHUT_WR)

    def shut_down(self) -> None:
        """End the connection in every process that has the socket: it closes with the last copy."""
        with contextlib.suppress(OSError):  # the peer is gone
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; harmless when repeated."""
        if self._has_unread and self._socket.fileno() >= 0:
            close_untrusted((self._socket.detach(),), self.owner)
        else:
            self._socket.close()


def _add_descriptors(ancillary: Sequence[tuple[int, int, bytes]], fds: list[int]) -> None:
    """Add the descriptors that came with a message."""
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += array.array("i", payload[: len(payload) - len(payload) % _FD_SIZE])
