"""Non-blocking sends: frames for a slow reader are queued, up to a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.messages import Message, encode
from softnpu.emulator.supervisor.held_descriptors import hold, let_go


class Outbox:
    """Frames to one peer, in order. `watch(True)` is called when the socket is full, `watch(False)` later.

    `limit` bounds the queued frames; beyond it `post` raises `BufferError` and the peer is given up.
    """

    def __init__(self, channel: Channel, watch: Callable[[bool], None], limit: int) -> None:
        self._channel = channel
        self._watch = watch
        self.limit = limit
        self._waiting: deque[tuple[int, bytes, list[int]]] = deque()
        self.waiting_bytes = 0

    def post(self, request: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Send now or queue; the caller keeps the descriptors, and queued frames hold them as well."""
        body = encode(message)
        if not self._waiting:
            try:
                self._channel.send(request, body, fds)
                return
            except BlockingIOError:
                self._watch(True)
            except ConnectionError:
                return  # its end is noticed by the reader of this socket
        if len(self._waiting) >= self.limit:
            raise BufferError(f"{len(self._waiting)} frames wait for a peer that does not read")
        self._waiting.append((request, body, hold(fds)))
        self.waiting_bytes += len(body)

    @property
    def waiting(self) -> int:
        """Number of queued frames."""
        return len(self._waiting)

    def flush(self) -> None:
        """Send queued frames until the socket is full."""
        while self._waiting:
            request, body, fds = self._waiting[0]
            try:
                self._channel.send(request, body, fds)
            except BlockingIOError:
                return
            except ConnectionError:
                self.close()
                return
            self._waiting.popleft()
            try:
                self.waiting_bytes -= len(body)
            finally:
                let_go(fds)
        self._watch(False)

    def close(self) -> None:
        """Drop the queued frames and the descriptors held for them."""
        for _, _, fds in self._waiting:
            let_go(fds)
        self._waiting.clear()
        self.waiting_bytes = 0
