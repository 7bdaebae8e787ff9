"""The output of a child, piped into the daemon's log line by line.

A child has no descriptor of the log, so even a compromised one cannot truncate it, forge lines of another
process, control the terminal that shows it, or fill a disk. Output left at its death is read afterwards.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from softnpu.emulator.common import log_lines
from softnpu.emulator.supervisor.reactor import Reactor

log = logging.getLogger(__name__)

_READ: Final = 65536
"""Bytes read at once: the capacity of a pipe unless its other end was enlarged."""
_LAST_LOOKS: Final = 16
_LONGEST: Final = 4096
_LINES, _PERIOD_S = 500, 10.0
_PAUSE_S: Final = 0.1  # for a child that writes more: it blocks on the full pipe, and nobody on it


class ChildOutput:
    """The output of one process; `fd`: the end to read from, which is closed by `close`."""

    def __init__(self, fd: int, pid: int, reactor: Reactor) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._pid = pid
        self._reactor = reactor
        self._rest = b""  # of a line that has not ended
        self._begun = -_PERIOD_S
        self._lines = self._lost = 0

    def watch(self) -> None:
        """Start logging the output."""
        self._reactor.watch(self._fd, self._read)

    def close(self) -> None:
        """Log the remaining output of an ended process."""
        if self._fd < 0:
            return
        self._reactor.unwatch(self._fd)
        try:
            for _ in range(_LAST_LOOKS):
                if not self._take():
                    break
            if self._rest:
                self._log(self._rest)
            self._tell_lost()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        lost = self._lost
        if not self._take():
            self._reactor.unwatch(self._fd)  # end of file: no writer is left
        elif self._lost > lost:
            self._reactor.unwatch(self._fd)
            self._reactor.after(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._fd >= 0:
            self.watch()

    def _take(self) -> bool:
        """Log pending lines; return False if there are none."""
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._log(line)
        if len(self._rest) > _LONGEST:
            self._log(self._rest)
            self._rest = b""
        return bool(data)

    def _log(self, line: bytes) -> None:
        now = time.monotonic()
        if now - self._begun >= _PERIOD_S:
            self._tell_lost()
            self._begun, self._lines = now, 0
        if self._lines >= _LINES:
            self._lost += 1
            return
        self._lines += 1
        text = line[:_LONGEST].decode("utf-8", "backslashreplace")
        log_lines.write(f"[{self._pid}] {text}{' (cut)' if len(line) > _LONGEST else ''}")

    def _tell_lost(self) -> None:
        if self._lost:
            log_lines.write(f"[{self._pid}] ({self._lost} lines more were left out)")
            self._lost = 0
