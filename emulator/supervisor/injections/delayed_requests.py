"""Requests of one client that an injected fault delays."""

from __future__ import annotations

from collections.abc import Callable

from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.supervisor.reactor import Reactor, Timer


class DelayedRequests:
    """Hold packets with their descriptors until their time has come."""

    def __init__(self, reactor: Reactor, serve: Callable[[Packet], None]) -> None:
        self._reactor = reactor
        self._serve = serve
        self._waiting: dict[int, tuple[Packet, Timer]] = {}
        self._next = 0

    @property
    def holds(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    def hold(self, packet: Packet, seconds: float) -> None:
        """Take the packet over and serve it after `seconds`."""
        mine = packet.taken()
        number = self._next = self._next + 1
        self._waiting[number] = (mine, self._reactor.after(seconds, lambda: self._due(number)))

    def cancel(self, request: int) -> bool:
        """Drop the request of this id; whether there was one."""
        numbers = [number for number, (packet, _) in self._waiting.items() if packet.request == request]
        for number in numbers:
            self._drop(number)
        return bool(numbers)

    def close(self) -> None:
        """Drop all: the client is gone."""
        for number in list(self._waiting):
            self._drop(number)

    def _due(self, number: int) -> None:
        packet, _ = self._waiting.pop(number)
        with packet:  # `serve` answers whatever goes wrong
            self._serve(packet)

    def _drop(self, number: int) -> None:
        packet, timer = self._waiting.pop(number)
        timer.cancel()
        packet.close()
