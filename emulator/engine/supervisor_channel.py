"""The engine's end of the channel to the supervisor: commands come in, reports go out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from softnpu.emulator.engine import failures
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.messages import encode
from softnpu.emulator.links import engine as link

_WAIT_S: Final = 0.05
_LEAST_NS: Final = 100_000
_MOST_NS: Final = 5_000_000


class SupervisorChannel:
    """Hands commands to `handle`, in their order. `alive`: the supervisor is there."""

    def __init__(self, channel: Channel, liveness: memoryview, handle: Callable[[Packet], None]) -> None:
        self.alive = True
        self._channel = channel
        self._liveness = liveness
        self._handle = handle
        self._read_ns = 0  # when it was read last

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, report: link.Report) -> None:
        """Send a report to the supervisor; if it is gone this engine ends."""
        try:
            self._channel.send(0, encode(report))
        except ConnectionError:
            self.alive = False

    def wait(self) -> None:
        """Wait for a command or the end of the supervisor."""
        self._channel.wait_readable(None)

    def read(self) -> bool:
        """Handle a command, if there is one; whether there may be more."""
        if not self.alive or not self._channel.wait_readable(0):
            return False
        packet = self._channel.receive()
        if packet is None:
            self.alive = False
            return False
        with packet:
            try:
                self._handle(packet)
            except Exception:  # noqa: BLE001
                failures.give_up("it cannot handle a message of the supervisor")
        return True

    def read_some(self) -> None:
        """Handle what the supervisor has sent, for as long as others may wait: half of the time at most."""
        start = time.monotonic_ns()
        end = start + min(max(start - self._read_ns, _LEAST_NS), _MOST_NS)
        while self.read() and time.monotonic_ns() < end:
            continue
        self._read_ns = time.monotonic_ns()

    def read_all(self) -> None:
        """Handle all that the supervisor has to send by now, also what waits because the socket was full.

        A client may use an object as soon as the supervisor has answered, before its message arrives here.
        """
        waiting = True
        while waiting and self.alive:
            # loaded before reading: what waited then may have been sent since
            waiting = bool(self._liveness[link.MESSAGES_WAITING])
            while self.read():
                continue
            if waiting:
                self._channel.wait_readable(_WAIT_S)
