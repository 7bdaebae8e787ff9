"""Sessions in their own processes, which can be killed at any moment."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from softnpu.tools.shared.fork_server import Child, ChildFunction, ForkServer
from tests.stateful.session_process import RefusedRequest, ScriptedSession
from tests.support.waiting import wait_gone, wait_readable

_ANSWER_S = 60.0
_LONGEST = 128 * 1024
_ROOT = Path(__file__).parents[2]


class RemoteError(Exception):
    """A session's request was refused: `result` and the text."""

    def __init__(self, result: int, text: str) -> None:
        super().__init__(text)
        self.result = result


class SessionProcesses:
    """Starts processes with one session each; `close` ends all of them."""

    def __init__(self) -> None:
        self._server = ForkServer(f"{__name__}:child_function", environment={"PYTHONPATH": str(_ROOT)})

    def open(self, daemon_socket: Path) -> RemoteSession:
        child = self._server.start(str(daemon_socket).encode())
        try:
            return RemoteSession(child)
        except BaseException:
            child.close()
            raise

    def close(self) -> None:
        self._server.close()


class RemoteSession:
    """Calls methods in the session's process: `session.call("allocate", ...)`."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._child.connection.settimeout(_ANSWER_S)
        self.pid = child.pid
        self.session: int = self.call("number")

    def call(self, method: str, *arguments: Any) -> Any:
        return self._call(method, list(arguments), [])[0]

    def call_with_fds(self, method: str, *arguments: Any, fds: list[int]) -> Any:
        """As `call`, with descriptors as the last arguments; they remain the caller's."""
        return self._call(method, list(arguments), fds)[0]

    def fetch_fd(self, method: str, *arguments: Any) -> int:
        """Return a descriptor, owned by the caller."""
        return self._call(method, list(arguments), [])[1][0]

    def leave(self) -> None:
        """End session and process in an orderly way."""
        self.call("leave")
        self._end()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._end()

    def close(self) -> None:
        """Close the connection, whatever the process does."""
        self._child.close()

    def _end(self) -> None:
        self._child.close()
        wait_gone(self.pid)

    def _call(self, method: str, arguments: list[Any], fds: list[int]) -> tuple[Any, list[int]]:
        connection = self._child.connection
        socket.send_fds(connection, [json.dumps([method, arguments]).encode()], fds)
        assert wait_readable(connection.fileno(), _ANSWER_S), f"no answer to {method}"
        data, received, _, _ = socket.recv_fds(connection, _LONGEST, 4)
        assert data, f"the session's process has ended in {method}{arguments}"
        kind, value = json.loads(data)
        if kind == "refused":
            raise RemoteError(*value)
        assert kind == "value", value
        return value, list(received)


def child_function() -> ChildFunction:
    """Entry point of each process of the fork server."""
    return _serve


def _serve(daemon_socket: bytes, connection: socket.socket) -> int:
    session: ScriptedSession | None = None
    while True:
        data, fds, _, _ = socket.recv_fds(connection, _LONGEST, 4)
        if not data:
            return 0
        method, arguments = json.loads(data)
        answer: list[Any]
        sent: list[int] = []
        try:
            session = session or ScriptedSession(daemon_socket.decode())
            value = getattr(session, method)(*arguments, *fds)
            if method == "share":
                sent, value = [value], None
            answer = ["value", value]
        except RefusedRequest as error:
            answer = ["refused", [error.info.result, str(error.info)]]
        except Exception as error:  # noqa: BLE001 - the test fails with it
            answer = ["crashed", f"{type(error).__name__}: {error}"]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
        connection.sendmsg([json.dumps(answer).encode()], rights)
