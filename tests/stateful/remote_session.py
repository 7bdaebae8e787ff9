"""Sessions in their own processes, which can be killed at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stateful import session_process
from tests.support.client import ClientProcess

_ANSWER_S = 60.0
_PROGRAM = f"from {session_process.__name__} import serve; serve(given, say, hear)"


class RemoteError(Exception):
    """A session's request was refused: `result` and the text."""

    def __init__(self, result: int, text: str) -> None:
        super().__init__(text)
        self.result = result


class RemoteSession:
    """Calls methods of a `ScriptedSession` in its process: `session.call("allocate", ...)`."""

    def __init__(self, daemon_socket: Path) -> None:
        self._client = ClientProcess(_PROGRAM, {"socket": str(daemon_socket)}, {})
        try:
            self.session: int = self.call("number")
        except BaseException:
            self._client.kill()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        self._client.tell([method, arguments])
        kind, value = self._client.hear(_ANSWER_S)
        if kind == "refused":
            raise RemoteError(*value)
        assert kind == "value", value
        return value

    def leave(self) -> None:
        """End session and process in an orderly way."""
        self.call("leave")
        self._client.tell()
        self._client.finish()
        self._client.kill()

    def kill(self) -> None:
        self._client.kill()
