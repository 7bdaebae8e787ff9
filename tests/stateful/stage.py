"""Actors in processes of their own, which can be killed at any moment.

A stage process imports everything once and forks an actor's process for each connection: that takes some
milliseconds, where a Python that starts takes most of a second.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from tests.conftest import StartPython
from tests.stateful.actor import Actor, Refusal
from tests.support.waiting import wait_gone, wait_readable

_ANSWER_S = 60.0
_LONGEST = 128 * 1024

_STAGE = """
import signal, socket
sys.path.insert(0, given["tests"])
from tests.stateful import stage
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
stage.serve(given["place"], lambda: say("open"))
"""


class Stage:
    """Starts actors; `end` ends the stage and all of them."""

    def __init__(self, start_python: StartPython, folder: Path) -> None:
        self._place = str(folder / "stage.sock")
        self._process = start_python(_STAGE, tests=str(Path(__file__).parents[2]), place=self._place)
        assert self._process.hear(_ANSWER_S) == "open"

    def actor(self, daemon_socket: Path) -> RemoteActor:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_ANSWER_S)
        connection.connect(self._place)
        return RemoteActor(connection, str(daemon_socket))


class RefusedFault(Exception):
    """What an actor was told: `result` and the words."""

    def __init__(self, result: int, text: str) -> None:
        super().__init__(text)
        self.result = result


class RemoteActor:
    """Has an actor do something: `actor.do("allocate", ...)`. Descriptors go and come beside the words."""

    def __init__(self, connection: socket.socket, daemon_socket: str) -> None:
        self._connection = connection
        self.pid: int = self._call("", [daemon_socket], [])[0]
        self.session: int = self.do("session")

    def do(self, what: str, *arguments: Any) -> Any:
        return self._call(what, list(arguments), [])[0]

    def give(self, what: str, *arguments: Any, fds: list[int]) -> Any:
        """As `do`, with descriptors as the last arguments; they stay the caller's."""
        return self._call(what, list(arguments), fds)[0]

    def fetch(self, what: str, *arguments: Any) -> int:
        """A descriptor, the caller's."""
        return self._call(what, list(arguments), [])[1][0]

    def leave(self) -> None:
        """The orderly end of session and process."""
        self.do("leave")
        self._end()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._end()

    def close(self) -> None:
        """Only lets go of it."""
        self._connection.close()

    def _end(self) -> None:
        self._connection.close()
        wait_gone(self.pid)

    def _call(self, what: str, arguments: list[Any], fds: list[int]) -> tuple[Any, list[int]]:
        socket.send_fds(self._connection, [json.dumps([what, arguments]).encode()], fds)
        assert wait_readable(self._connection.fileno(), _ANSWER_S), f"no answer to {what}"
        data, received, _, _ = socket.recv_fds(self._connection, _LONGEST, 4)
        assert data, f"the actor has ended at {what}{arguments}"
        kind, value = json.loads(data)
        if kind == "refused":
            raise RefusedFault(*value)
        assert kind == "value", value
        return value, list(received)


def serve(place: str, ready: Any) -> None:
    """The stage's own process: forks an actor for each connection, for ever."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place)
    listener.listen(64)
    ready()
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        try:
            _act(connection)
        finally:
            os._exit(0)


def _act(connection: socket.socket) -> None:
    from softnpu.emulator.common import linux

    linux.die_with_parent(os.getppid())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    actor: Actor | None = None
    while True:
        data, fds, _, _ = socket.recv_fds(connection, _LONGEST, 4)
        if not data:
            return
        what, arguments = json.loads(data)
        answer: list[Any]
        sent: list[int] = []
        try:
            if actor is None:
                actor = Actor(*arguments)
                value: Any = os.getpid()
            elif what == "session":
                value = actor.session
            else:
                value = getattr(actor, what)(*arguments, *fds)
            if what == "share":
                sent, value = [value], None
            answer = ["value", value]
        except Refusal as error:
            answer = ["refused", [error.info.result, str(error.info)]]
        except Exception as error:  # noqa: BLE001 - the director fails with it
            answer = ["crashed", f"{type(error).__name__}: {error}"]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
        connection.sendmsg([json.dumps(answer).encode()], rights)
