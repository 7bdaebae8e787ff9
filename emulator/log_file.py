"""The log of a daemon in the background: bounded, with one older part beside it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.result import Refused

MAX_BYTES = 8 << 20


class LogRotation(logging.Filter):
    """Move the log at `fd` to `SOCKET.log.1` before a line that finds it full.

    It is copied and truncated, not renamed: this process has it open as its streams, and a starter may, too.
    """

    def __init__(self, fd: int, socket: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._fd = fd
        self._older = endpoint.older_log_path(socket)
        self._max_bytes = max_bytes

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record."""
        if os.fstat(self._fd).st_size >= self._max_bytes:
            try:
                self._rotate()
            except (OSError, Refused) as error:
                record.msg, record.args = f"(older lines are lost: {error}) {record.getMessage()}", ()
        return True

    def _rotate(self) -> None:
        try:
            older = daemon_files.open_own(self._older, os.O_WRONLY, "log file")
            try:
                os.ftruncate(older, 0)
                with open(f"/proc/self/fd/{self._fd}", "rb") as log:
                    while os.sendfile(older, log.fileno(), None, 1 << 30):
                        pass
            finally:
                os.close(older)
        finally:
            os.ftruncate(self._fd, 0)
