"""A fuzzer connection: many frames at once, every answer counted, every wait with a deadline."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR
from tests.support.wire import raw_socket

ANSWER_S = 60.0
"""A later answer is a hang. On a loaded machine the slowest compiler job takes a few seconds."""


class Closed(Exception):
    """The daemon has ended the connection."""


class Hang(Exception):
    """No answer came within `ANSWER_S`."""


class Connection:
    """A session, or a future one. Descriptors of answers are closed unless `keep` takes them."""

    def __init__(self, path: Path) -> None:
        self.socket: socket.socket = raw_socket(path)
        self.socket.settimeout(ANSWER_S)
        self.channel = Channel(self.socket)
        self._number = 0

    def hello(self, client: str = "fuzzer", role: str = "session") -> msg.Welcome:
        request = msg.Hello(major=INTERFACE_MAJOR, minor=INTERFACE_MINOR, client=client, role=role)
        answer, fds = self.ask(request)
        close_all(fds)
        assert isinstance(answer, msg.Welcome), answer
        return answer

    def send(self, body: bytes, fds: Sequence[int] = ()) -> int:
        """Send one frame; return its number."""
        self._number += 1
        try:
            self.channel.send(self._number, body, fds)
        except ConnectionError as error:
            raise Closed(str(error)) from error
        except TimeoutError as error:
            raise Hang("the daemon does not read") from error
        return self._number

    def receive(self) -> tuple[int, msg.Answer, list[int]]:
        """Return the next answer, its request, and its descriptors, which the caller owns."""
        try:
            packet = self.channel.receive()
        except TimeoutError as error:
            raise Hang(f"no answer within {ANSWER_S:g} s") from error
        except ConnectionError as error:
            raise Closed(str(error)) from error
        if packet is None:
            raise Closed("end of connection")
        with packet:
            answer = msg.decode_answer(packet.body)
            return packet.request, answer, packet.take_fds(packet.fd_count)

    def exchange(self, frames: Sequence[tuple[bytes, Sequence[int]]]) -> list[tuple[msg.Answer, list[int]]]:
        """Send all frames, await the final answer to each; return answers in frame order."""
        numbers = [self.send(body, fds) for body, fds in frames]
        answers: dict[int, tuple[msg.Answer, list[int]]] = {}
        while len(answers) < len(numbers):
            number, answer, fds = self.receive()
            if isinstance(answer, msg.Progress):
                continue
            if not number:
                raise Closed(f"malformed: {answer}")
            assert number not in answers, f"two answers to request {number}: {answer}"
            assert number in numbers, f"an answer to request {number}, which has none under way: {answer}"
            answers[number] = (answer, fds)
        return [answers[number] for number in numbers]

    def ask(self, request: msg.Message, fds: Sequence[int] = ()) -> tuple[msg.Answer, list[int]]:
        """Send one request; return its answer."""
        return self.exchange([(msg.encode(request), fds)])[0]

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def drained(connection: Connection) -> msg.Answer | None:
    """Read a connection to its end; return the last answer, if any."""
    last = None
    while True:
        try:
            _, last, fds = connection.receive()
            close_all(fds)
        except (Closed, Refused):
            return last
