"""Descriptors in answers that nobody has read yet: a share of them for each connection and each user.

The kernel counts descriptors on their way through sockets for the user who has sent them, which is the owner
of the daemon, and at the daemon's limit of descriptors it sends no more, to anybody. So who does not read
must not have many on their way.
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
    """Return how many one user may have on their way: a quarter of those that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART_OF_USER


class UserFlights:
    """What is on its way to all connections of a user: at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refusals = 0
        self.used = 0
        """How many there were at the last look."""
        self._flights: set[Flight] = set()  # with descriptors on their way
        self._settle_due = 0.0

    def count(self, flight: Flight, more: int) -> None:
        """Count descriptors to one connection; fewer if negative."""
        self.used += more
        if flight.used:
            self._flights.add(flight)
        else:
            self._flights.discard(flight)

    def has_room(self, more: int) -> bool:
        """Whether there may be so many more, leaving out those that were read.

        If none was, nobody asks the kernel again for a moment: there may be thousands of connections.
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
    """What is on its way to one connection: sent, or about to be. `used`: how many, at the last look."""

    def __init__(self, channel: Channel, outbox: Outbox, user: UserFlights) -> None:
        self.used = 0
        self._channel = channel
        self._outbox = outbox
        self._user = user

    def take(self, more: int) -> None:
        """Count descriptors that are sent; refuse them if too many have not been read."""
        self.settle()
        if self.used + more > CONNECTION_DESCRIPTORS:
            raise self._refusal(self.used, "this connection", CONNECTION_DESCRIPTORS)
        if not self._user.has_room(more):
            raise self._refusal(self._user.used, "all connections of this user", self._user.limit)
        self._set(self.used + more)

    def settle(self) -> None:
        """Count none if the peer has read everything, or is gone."""
        if self.used and not self._outbox.waiting and not self._is_unread():
            self._set(0)

    def linger(self, reactor: Reactor, on_end: Callable[[], None]) -> None:
        """End the connection, but keep its socket until what was sent is read: then call `on_end`.

        Nobody could say any more whether it is, and the descriptors go on counting for the daemon.
        """
        self._channel.drain()
        self._channel.shut_down()

        def look() -> None:
            self.settle()
            if self.used:
                reactor.after(_LINGER_S, look)
            else:
                self._channel.close()
                on_end()

        look()

    def _set(self, used: int) -> None:
        more, self.used = used - self.used, used
        self._user.count(self, more)

    def _is_unread(self) -> bool:
        """Whether bytes of frames are in the peer's socket."""
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
