"""The socket served by a daemon: its exclusive lock, and the listener."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

from softnpu.emulator import access, activation, socket_files
from softnpu.emulator.common import failpoints
from softnpu.emulator.socket_files import DaemonLock
from softnpu.emulator.supervisor.settings import DaemonSettings


class TakenSocket(NamedTuple):
    """Descriptors of a socket that this process took before it was a daemon: lock file and listener."""

    lock: int
    listener: int


class ServedSocket:
    """A socket path that this daemon serves until `close`."""

    def __init__(self, settings: DaemonSettings, taken: TakenSocket | None = None) -> None:
        self.path = Path(settings.socket)
        self._lock: DaemonLock | None = DaemonLock(self.path, taken.lock if taken else -1)
        others = bool(settings.allow_users or settings.allow_groups)
        try:
            passed = None if taken else activation.take_listener(self.path, others=others)
            fd = taken.listener if taken else socket_files.listen(settings.socket) if passed is None else -1
            self.listener = socket.socket(fileno=fd) if passed is None else passed
        except BaseException:
            self._lock.release()
            raise
        self._is_passed = passed is not None
        try:
            if others:
                access.open_socket_to(self.path, settings.allow_users, settings.allow_groups)
        except BaseException:
            self.close()
            raise

    def reserve(self) -> None:
        """Take the room of the record. Raises `OSError` if it could not be written."""
        assert self._lock is not None
        self._lock.reserve()

    def record(self, status: str) -> None:
        """Write who serves the path."""
        assert self._lock is not None
        self._lock.record(status)

    def close(self) -> None:
        """Release the path for the next daemon; harmless when repeated.

        The listener goes first: a client that waits there sees its connection end. The lock goes last:
        without it the path may be another daemon's. Of a socket that was passed only the copy goes: who waits
        there is the next daemon's.
        """
        if self._lock is None:
            return
        if not self._is_passed:
            self.listener.shutdown(socket.SHUT_RDWR)  # a child that is being started may still have a copy
        self.listener.close()
        if failpoints.active is not None:
            failpoints.hit("supervisor.release")
        if not self._is_passed:
            self.path.unlink(missing_ok=True)
        self._lock.release()
        self._lock = None
