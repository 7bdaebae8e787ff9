"""The session of this process with one daemon, as its devices and contexts use it."""

from __future__ import annotations

from softnpu.driver.connection import Connection
from softnpu.driver.handle import Handle
from softnpu.emulator.interface import messages as msg


class Session(Handle):
    """Everything created through it ends with it."""

    def __init__(self, connection: Connection, session: int) -> None:
        self._connection = connection
        self.session = session
        """Its number, as `softnpu status` shows it."""
        self._register(None, connection, connection.close)

    @property
    def lost(self) -> bool:
        """Whether the daemon is gone: every call raises DEVICE_LOST then."""
        return self._connection.is_lost()

    def status(self, call: str = "zeDriverGetProperties") -> msg.StatusAnswer:
        """The state of the whole daemon."""
        self._check(call)
        answer, _ = self._connection.request(call, msg.Status(), msg.StatusAnswer)
        return answer
