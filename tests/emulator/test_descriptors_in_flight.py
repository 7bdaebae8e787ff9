"""Answers with descriptors that nobody reads: who does not read has few on their way, others are served."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.supervisor.children.outbox import Outbox
from softnpu.emulator.supervisor.clients.client import Client
from softnpu.emulator.supervisor.descriptors_in_flight import CONNECTION_DESCRIPTORS, Flight, UserFlights
from softnpu.emulator.supervisor.reactor import Reactor
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_until
from tests.support.wire import HELLO, OpenWire, Wire, WireContext, raw_socket

_MORE = CONNECTION_DESCRIPTORS + 20


class _Peer:
    """A connection: `read` reads what has come."""

    def __init__(self, flights: UserFlights) -> None:
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = Channel(ours)
        self._outbox = Outbox(self.channel, lambda _full: None, 0)
        self.flight = Flight(self.channel, self._outbox, flights)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.flight.take(1)
            self._outbox.post(0, msg.Ok(), [0])

    def read(self, count: int) -> None:
        theirs = Channel(self.socket)
        for _ in range(count):
            packet = theirs.receive()
            assert packet is not None
            packet.close()

    def close(self) -> None:
        self.channel.close()
        self.socket.close()


@pytest.fixture
def flights() -> UserFlights:
    """Those of a user who may have ten."""
    return UserFlights(10)


@pytest.fixture
def peers(flights: UserFlights) -> Iterator[list[_Peer]]:
    peers = [_Peer(flights) for _ in range(2)]
    yield peers
    for peer in peers:
        peer.close()


def test_a_user_has_its_share_over_all_connections_and_gets_it_back_by_reading(
    flights: UserFlights, peers: list[_Peer]
) -> None:
    one, other = peers
    one.send(6)
    other.send(4)
    with pytest.raises(Refused, match="10 descriptors in answers to all connections of this user") as caught:
        other.send(1)
    assert caught.value.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    one.read(5)
    assert flights.used == 10, "the last one may be any of them"
    one.read(1)
    one.flight.settle()
    other.send(6)
    assert (one.flight.used, other.flight.used, flights.used) == (0, 10, 10)


def test_who_asks_again_has_read_what_was_answered(
    peers: list[_Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each answer came with a report of progress, a client was refused its 129th graph."""
    peer, client = peers[0], object.__new__(Client)
    monkeypatch.setattr(Client, "_serve", lambda *_: None)
    client._open, client._ending = True, False
    client._channel, client._flight = peer.channel, peer.flight
    os.set_blocking(peer.channel.fileno(), False)
    peer.send(1)
    peer.read(1)
    Channel(peer.socket).send(1, msg.encode(msg.Status()))
    client._read()
    assert peer.flight.used == 0


def test_who_reads_is_not_refused_beside_one_that_does_not(peers: list[_Peer]) -> None:
    one, other = peers
    one.send(8)
    for _ in range(5):
        other.send(2)
        with pytest.raises(Refused):
            one.send(1)
        other.read(2)


def test_who_does_not_read_keeps_its_share_when_the_daemon_has_closed(
    flights: UserFlights, peers: list[_Peer]
) -> None:
    reactor, one, ended = Reactor(), peers[0], []
    one.send(3)
    one.flight.linger(reactor, lambda: ended.append(1))
    assert (flights.used, ended) == (3, [])
    one.read(3)
    assert Channel(one.socket).receive() is None, "it is told the end at once"
    reactor.after(1.5, reactor.stop)
    reactor.run()
    assert (flights.used, ended, one.channel.fileno()) == (0, [1], -1)
    reactor.close()


def _ask_without_reading(wire: Wire, count: int) -> None:
    """Allocate segments of their own, whose descriptors come with the answers."""
    context = WireContext(wire)
    for _ in range(count):
        wire.send(msg.MemAlloc(context=context.handle, kind="host", size=4096, exportable=True))


def test_a_connection_that_does_not_read_is_refused_more_until_it_reads(
    daemon: Daemon, open_wire: OpenWire
) -> None:
    lazy, other = open_wire(daemon), open_wire(daemon)
    _ask_without_reading(lazy, _MORE)
    wait_until(lambda: daemon.status().users[0].refusals > 0, what="a refusal")
    WireContext(other).check_works()
    answers = [lazy.receive()[1] for _ in range(_MORE)]
    refused = [answer.info for answer in answers if isinstance(answer, msg.Failed)]
    assert refused
    assert len(answers) - len(refused) <= CONNECTION_DESCRIPTORS
    assert {info.result for info in refused} == {ZeResult.ERROR_OUT_OF_HOST_MEMORY}
    assert "were not read" in refused[0].found
    WireContext(lazy).check_works()


def test_descriptors_count_until_they_are_read_also_after_the_connection(daemon: Daemon) -> None:
    before = daemon.base_fd_count()
    with raw_socket(daemon.socket) as lazy:
        channel = Channel(lazy)
        channel.send(1, msg.encode(HELLO))
        wait_until(lambda: daemon.status().users[0].sessions == 1, what="the session")
        lazy.send(b"no frame")
        wait_until(lambda: daemon.status().users[0].sessions == 0, what="the end of the session")
        assert daemon.status().users[0].connections == 2, "the welcome was not read"
        lazy.settimeout(DEADLINE_S)
        while (packet := channel.receive()) is not None:
            packet.close()
        wait_until(lambda: daemon.status().users[0].connections == 1, what="the end of the connection")
    wait_until(lambda: daemon.base_fd_count() <= before, what="descriptors closed")
