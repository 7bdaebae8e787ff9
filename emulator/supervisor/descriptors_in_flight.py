"""Descriptors in flight, in answers not yet read: limited per connection and per user.

The kernel counts descriptors in flight against the sending user, which is the daemon's owner, and at the
daemon's descriptor limit it sends no more, to anybody. So a client that does not read must not have many in
flight.
"""

from __future__ import annotations

import fcntl
import resource
import struct
import termios
import time
from collections.abc import Callable
from typing import Final

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.children.outbox import Outbox
from softnpu.emulator.supervisor.reactor import Reactor

CONNECTION_DESCRIPTORS: Final = 128
_PART_OF_USER: Final = 4
_SETTLE_EVERY_S: Final = 0.02
_LINGER_S: Final = 1.0


def user_descriptors() -> int:
    """Return one user's limit of descriptors in flight: a quarter of what this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART_OF_USER


class UserFlights:
    """The descriptors in flight to all connections of a user: at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refusals = 0
        self.used = 0
        """Number at the last check."""
        self._flights: set[Flight] = set()  # with descriptors in flight
        self._settle_due = 0.0

    def count(self, flight: Flight, more: int) -> None:
        """Count descriptors to one connection; fewer if negative."""
        self.used += more
        if flight.used:
            self._flights.add(flight)
        else:
            self._flights.discard(flight)

    def has_room(self, more: int) -> bool:
        """Whether `more` are allowed, after discounting those already read.

        If none was read, the kernel is not asked again for a moment: there may be thousands of connections.
        """
        used = self.used
        if used + more > self.limit and time.monotonic() >= self._settle_due:
            for flight in list(self._flights):
                flight.settle()
            self.used = sum(flight.used for flight in self._flights)
            if self.used == used:
                self._settle_due = time.monotonic() + _SETTLE_EVERY_S
        return self.used + more <= self.limit


class Flight:
    """The descriptors in flight to one connection, or about to be. `used`: their number at the last check."""

    def __init__(self, channel: Channel, outbox: Outbox, user: UserFlights) -> None:
        self.used = 0
        self._channel = channel
        self._outbox = outbox
        self._user = user

    def take(self, more: int) -> None:
        """Count descriptors about to be sent; refuse them if too many are unread."""
        self.settle()
        if self.used + more > CONNECTION_DESCRIPTORS:
            raise self._refusal(self.used, "this connection", CONNECTION_DESCRIPTORS)
        if not self._user.has_room(more):
            raise self._refusal(self._user.used, "all connections of this user", self._user.limit)
        self._set(self.used + more)

    def settle(self) -> None:
        """Reset the count if the peer has read everything or is gone."""
        if self.used and not self._outbox.waiting and not self._is_unread():
            self._set(0)

    def linger(self, reactor: Reactor, on_end: Callable[[], None]) -> None:
        """End the connection, but keep its socket until everything sent is read, then call `on_end`.

        Without the socket that could not be checked, while the descriptors still count against the daemon.
        """

        def look() -> None:
            self.settle()
            if not self.used:
                self._channel.close()
                on_end()
                timer.cancel()

        timer = reactor.every(_LINGER_S, look)  # whatever it raises: nobody else closes the socket
        self._channel.drain()
        self._channel.shut_down()
        look()

    def _set(self, used: int) -> None:
        more, self.used = used - self.used, used
        self._user.count(self, more)

    def _is_unread(self) -> bool:
        """Whether unread bytes are in the peer's socket."""
        (unread,) = struct.unpack("i", fcntl.ioctl(self._channel.fileno(), termios.TIOCOUTQ, bytes(4)))
        return bool(unread)

    def _refusal(self, used: int, whose: str, limit: int) -> Refused:
        self._user.refusals += 1
        return refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "connection",
            found=f"{used} descriptors in answers to {whose} that were not read",
            expected=f"at most {limit}",
            hint="read the answers",
        )
