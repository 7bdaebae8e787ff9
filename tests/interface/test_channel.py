"""A channel carries frames and descriptors, refuses bad frames, and never leaks a descriptor."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from softnpu.emulator.interface import frames
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.endpoint import new_socket
from softnpu.emulator.interface.result import Refused, ZeResult

_DEADLINE_S = 10.0
Ends = tuple[socket.socket, Channel]


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    before = _open_fds()
    yield
    assert _open_fds() == before


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
    """20 descriptors to send, the read ends and write ends of ten pipes."""
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
    assert _open_fds() == before, "the refused frame left descriptors open"
    return caught.value


def test_the_socket_keeps_packet_borders() -> None:
    with new_socket() as made:
        assert (made.family, made.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_a_frame_arrives_whole(ends: Ends) -> None:
    raw, channel = ends
    Channel(raw).send(7, b"one")
    Channel(raw).send(8, b"")
    with _received(channel) as packet:
        assert (packet.request, bytes(packet.body), packet.fd_count) == (7, b"one", 0)
    with _received(channel) as packet:
        assert (packet.request, bytes(packet.body)) == (8, b"")


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


def test_a_packet_closes_the_descriptors_that_nobody_took(ends: Ends, pipes: list[int]) -> None:
    raw, channel = ends
    before = _open_fds()
    Channel(raw).send(1, b"", pipes[:3])
    with _received(channel) as packet:
        assert packet.fd_count == 3
        assert _open_fds() == before + 3
    assert _open_fds() == before
    packet.close()


def test_another_number_of_descriptors_than_wanted_is_refused_and_they_are_closed(
    ends: Ends, pipes: list[int]
) -> None:
    raw, channel = ends
    Channel(raw).send(1, b"", pipes[:2])
    with pytest.raises(Refused, match="2 descriptors; expected 1"), _received(channel) as packet:
        packet.take_fds(1)


def test_the_end_of_the_peer_is_none_every_time(ends: Ends) -> None:
    raw, channel = ends
    raw.close()
    assert channel.receive() is None
    assert channel.receive() is None


def test_an_empty_packet_counts_as_the_end(ends: Ends) -> None:
    raw, channel = ends
    raw.send(b"")
    assert channel.receive() is None


def test_frames_sent_before_the_end_arrive_before_it(ends: Ends) -> None:
    raw, channel = ends
    Channel(raw).send(3, b"last words")
    raw.close()
    with _received(channel) as packet:
        assert bytes(packet.body) == b"last words"
    assert channel.receive() is None


def test_last_words_arrive_also_when_the_peer_left_without_reading_everything(ends: Ends) -> None:
    raw, channel = ends
    channel.send(1, b"never read")
    Channel(raw).send(3, b"last words")
    raw.close()
    with _received(channel) as packet:
        assert bytes(packet.body) == b"last words"
    assert channel.receive() is None


def test_a_peer_that_left_without_reading_or_writing_is_none(ends: Ends) -> None:
    raw, channel = ends
    channel.send(1, b"never read")
    raw.close()
    assert channel.receive() is None


def test_sending_to_a_peer_that_is_gone_is_a_connection_error(ends: Ends) -> None:
    raw, channel = ends
    raw.close()
    with pytest.raises(ConnectionError):
        channel.send(1, b"hello")


@pytest.mark.parametrize("announced", [0, 1, 3])
def test_a_wrong_descriptor_count_is_refused(ends: Ends, pipes: list[int], announced: int) -> None:
    raw, channel = ends
    _send_raw(raw, _frame(announced), pipes[:2])
    assert _refusal(channel).info.found == f"2 descriptors received, header says {announced}"


@pytest.mark.parametrize(
    "frame",
    [b"", _frame(2)[:7], b"XXXX" + _frame(2)[4:], _frame(2)[:-1], _frame(2) + b"x", b"x"],
    ids=["nothing", "cut header", "magic", "short body", "long body", "one byte"],
)
def test_a_malformed_frame_is_refused_and_its_descriptors_are_closed(
    ends: Ends, pipes: list[int], frame: bytes
) -> None:
    raw, channel = ends
    _send_raw(raw, frame, pipes[:2])
    _refusal(channel)


def test_the_channel_goes_on_after_a_refused_frame(ends: Ends) -> None:
    raw, channel = ends
    raw.send(b"rubbish")
    _refusal(channel)
    Channel(raw).send(1, b"good")
    with _received(channel) as packet:
        assert bytes(packet.body) == b"good"


def test_the_largest_frame_passes(ends: Ends) -> None:
    raw, channel = ends
    Channel(raw).send(1, bytes(frames.MAX_BODY))
    with _received(channel) as packet:
        assert len(packet.body) == frames.MAX_BODY


@pytest.mark.parametrize("excess", [1, 2, 1000])
def test_an_oversized_packet_is_refused_and_its_descriptors_are_closed(
    ends: Ends, pipes: list[int], excess: int
) -> None:
    raw, channel = ends
    _send_raw(raw, _frame(2, bytes(frames.MAX_BODY + excess)), pipes[:2])
    assert _refusal(channel).info.result == ZeResult.ERROR_INVALID_SIZE


@pytest.mark.parametrize("count", [17, 20])
def test_more_than_16_descriptors_are_refused_and_all_are_closed(
    ends: Ends, pipes: list[int], count: int
) -> None:
    raw, channel = ends
    _send_raw(raw, _frame(count), pipes[:count])
    assert _refusal(channel).info.found == f"{count} descriptors"


def test_a_sender_refuses_more_than_16_descriptors(ends: Ends, pipes: list[int]) -> None:
    raw, _ = ends
    with pytest.raises(Refused, match="17 descriptors"):
        Channel(raw).send(1, b"", pipes[:17])


def test_a_full_socket_that_may_not_wait_says_so(ends: Ends) -> None:
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
    Channel(raw).send(1, b"")
    assert channel.wait_readable(0)
    sender = threading.Timer(0, Channel(raw).send, (2, b""))
    _received(channel).close()
    sender.start()
    assert channel.wait_readable(_DEADLINE_S)
    sender.join(_DEADLINE_S)


def test_the_end_of_the_peer_is_seen_without_reading(ends: Ends) -> None:
    raw, channel = ends
    Channel(raw).send(1, b"unread")
    assert not channel.peer_gone()
    raw.close()
    assert channel.peer_gone()
    with _received(channel) as packet:
        assert bytes(packet.body) == b"unread"


def test_closing_twice_is_harmless(ends: Ends) -> None:
    _, channel = ends
    channel.close()
    channel.close()
    assert channel.fileno() == -1
