"""Channels carry frames and descriptors, refuse bad frames, and never leak a descriptor."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from softnpu.emulator.interface import frames
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import Refused
from tests.support.waiting import wait_until

pytestmark = pytest.mark.quick

_DEADLINE_S = 10.0
Ends = tuple[socket.socket, Channel]


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    before = _open_fds()
    yield
    wait_until(lambda: _open_fds() == before, what="the descriptors to be closed")  # pipes are in a thread


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A raw socket that may send anything, and the channel that receives it."""
    raw, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.settimeout(_DEADLINE_S)
    other.settimeout(_DEADLINE_S)
    channel = Channel(other)
    try:
        yield raw, channel
    finally:
        raw.close()
        channel.close()


@pytest.fixture
def pipes() -> Iterator[list[int]]:
    """20 descriptors to send: the read ends and write ends of ten pipes."""
    fds = [fd for _ in range(10) for fd in os.pipe()]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _send_raw(raw: socket.socket, frame: bytes, fds: list[int]) -> None:
    rights = array.array("i", fds)
    raw.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else [])


def _frame(fd_count: int, body: bytes = b"body") -> bytes:
    return frames.HEADER.pack(b"SNPU", 1, fd_count, 9, len(body)) + body


def _received(channel: Channel) -> Packet:
    packet = channel.receive()
    assert packet is not None
    return packet


def _refusal(channel: Channel) -> Refused:
    before = _open_fds()
    with pytest.raises(Refused) as caught:
        channel.receive()
    wait_until(lambda: _open_fds() == before, what="the descriptors of the refused frame to be closed")
    return caught.value


def test_frames_arrive_whole_and_in_order(ends: Ends) -> None:
    raw, channel = ends
    bodies = [b"one", b"", bytes(frames.MAX_BODY)]
    for request, body in enumerate(bodies):
        Channel(raw).send(request, body)
        with _received(channel) as packet:
            assert (packet.request, bytes(packet.body), packet.fd_count) == (request, body, 0)


def test_descriptors_arrive_in_order_and_name_the_same_files(ends: Ends, pipes: list[int]) -> None:
    raw, channel = ends
    Channel(raw).send(1, b"", pipes[:16])
    fds = _received(channel).take_fds(16)
    try:
        assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in pipes[:16]]
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[1], b"through")
        assert os.read(pipes[0], 100) == b"through"
    finally:
        for fd in fds:
            os.close(fd)


def test_a_packet_closes_its_untaken_descriptors(ends: Ends, pipes: list[int]) -> None:
    raw, channel = ends
    before = _open_fds()
    Channel(raw).send(1, b"", pipes[:3])
    with _received(channel) as packet:
        assert (packet.fd_count, _open_fds()) == (3, before + 3)
    wait_until(lambda: _open_fds() == before, what="the descriptors to be closed")
    packet.close()
    Channel(raw).send(1, b"", pipes[:2])
    with pytest.raises(Refused, match="2 descriptors; expected 1"), _received(channel) as packet:
        packet.take_fds(1)


def test_the_end_of_the_peer_is_none_every_time(ends: Ends) -> None:
    raw, channel = ends
    raw.send(b"")
    assert channel.receive() is None
    raw.close()
    assert channel.receive() is None
    assert channel.receive() is None


@pytest.mark.parametrize("unread", [False, True])
def test_frames_sent_before_the_end_arrive_before_it(ends: Ends, unread: bool) -> None:
    raw, channel = ends
    if unread:
        channel.send(1, b"never read")
    Channel(raw).send(3, b"last words")
    assert not channel.peer_gone()
    raw.close()
    assert channel.peer_gone()
    with _received(channel) as packet:
        assert bytes(packet.body) == b"last words"
    assert channel.receive() is None


def test_a_peer_that_left_without_reading_or_writing_is_none(ends: Ends) -> None:
    raw, channel = ends
    channel.send(1, b"never read")
    raw.close()
    assert channel.receive() is None
    with pytest.raises(ConnectionError):
        channel.send(1, b"hello")


@pytest.mark.parametrize(
    ("frame", "fds", "found"),
    [
        (_frame(0), 2, "2 descriptors received, header says 0"),
        (_frame(3), 2, "2 descriptors received, header says 3"),
        (b"XXXX" + _frame(2)[4:], 2, "magic"),
        (_frame(2, bytes(frames.MAX_BODY + 1)), 2, "more than 65552 bytes"),
        (_frame(17), 17, "17 descriptors"),
        (_frame(20), 20, "20 descriptors"),
    ],
)
def test_a_malformed_frame_is_refused_and_the_channel_continues(
    ends: Ends, pipes: list[int], frame: bytes, fds: int, found: str
) -> None:
    raw, channel = ends
    _send_raw(raw, frame, pipes[:fds])
    assert found in _refusal(channel).info.found
    Channel(raw).send(1, b"good")
    with _received(channel) as packet:
        assert bytes(packet.body) == b"good"


def test_a_sender_refuses_more_than_16_descriptors(ends: Ends, pipes: list[int]) -> None:
    with pytest.raises(Refused, match="17 descriptors"):
        Channel(ends[0]).send(1, b"", pipes[:17])


def test_a_full_non_blocking_socket_is_reported(ends: Ends) -> None:
    raw, _ = ends
    raw.setblocking(False)

    def fill() -> None:
        for _ in range(10_000):
            Channel(raw).send(1, bytes(1000))

    with pytest.raises(BlockingIOError):
        fill()


def test_readable_is_seen_within_the_deadline(ends: Ends) -> None:
    raw, channel = ends
    assert not channel.wait_readable(0)
    sender = threading.Timer(0, Channel(raw).send, (2, b""))
    sender.start()
    assert channel.wait_readable(_DEADLINE_S)
    sender.join(_DEADLINE_S)


def test_closing_twice_is_harmless(ends: Ends) -> None:
    _, channel = ends
    channel.close()
    channel.close()
    assert channel.fileno() == -1
