"""The engine's end of the channel to the supervisor: receives commands, sends reports."""

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
    """Passes commands to `handle`, in order. `alive`: whether the supervisor is."""

    def __init__(self, channel: Channel, liveness: memoryview, handle: Callable[[Packet], None]) -> None:
        self.alive = True
        self._channel = channel
        self._liveness = liveness
        self._handle = handle
        self._read_ns = 0  # when it was last read

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, report: link.Report) -> None:
        """Send a report to the supervisor; this engine ends if the supervisor is gone."""
        try:
            self._channel.send(0, encode(report))
        except ConnectionError:
            self.alive = False

    def wait(self) -> None:
        """Wait for a command or the end of the supervisor."""
        self._channel.wait_readable(None)

    def read(self) -> bool:
        """Handle a command, if any; return whether there may be more."""
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
        """Handle pending messages for a bounded time: at most half of the engine's time."""
        start = time.monotonic_ns()
        end = start + min(max(start - self._read_ns, _LEAST_NS), _MOST_NS)
        while self.read() and time.monotonic_ns() < end:
            continue
        self._read_ns = time.monotonic_ns()

    def read_all(self) -> None:
        """Handle all messages that the supervisor has queued by now, including those behind a full socket.

        A client may use an object once the supervisor has answered, before the message about it arrives here.
        """
        waiting = True
        while waiting and self.alive:
            # loaded before reading: messages pending then may have been sent since
            waiting = bool(self._liveness[link.MESSAGES_WAITING])
            while self.read():
                continue
            if waiting:
                self._channel.wait_readable(_WAIT_S)
