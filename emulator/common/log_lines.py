"""The log of a daemon: one line per record, from whichever process.

Records contain names chosen by others: of clients, models, layers, files. No name can start a line or reach a
terminal as a control sequence.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import stat
import sys
from types import TracebackType

from softnpu.emulator.common.printable import printable

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_INDENT = "  "
_WRITTEN = f"{__name__}.written"
"""Logger of complete lines."""
_OWN = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
_ROOM = 256  # bytes that a terminal takes, if it takes any


class LineFormatter(logging.Formatter):
    """Escape what is not printable; a traceback keeps its lines, indented, as its error may hold any text."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return printable(record.getMessage()) if record.name == _WRITTEN else super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        return printable(super().formatMessage(record))

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the traceback with no line that could be one of a record."""
        return "\n".join(_INDENT + printable(line) for line in super().formatException(ei).splitlines())


class UnwaitedLines(logging.Handler):
    """Write lines to a pipe, socket or terminal `fd`; leave out, and count, those for which it has no room.

    Its reader may be stopped (Ctrl-S) or gone on to something else: to wait for it would stop a daemon.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._socket: socket.socket | None = None
        self._is_own = False
        self._lost = 0
        self._is_cut = False
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            self._socket = socket.socket(fileno=os.dup(fd))
            return
        try:
            # others who have the same pipe or terminal wait as before
            self._fd = os.open(f"/proc/self/fd/{fd}", _OWN)
            self._is_own = True
        except OSError:  # the terminal of another user
            self._is_own = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record at once or not at all."""
        try:
            text = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001
            self.handleError(record)
            return
        if self._lost:
            text = f"({self._lost} lines were left out before this one: nobody read them)\n{text}"
        if self._is_cut:
            text = f"\n{text}"
        self._lost = 0 if self._write(text.encode("utf-8", "backslashreplace")) else self._lost + 1

    def close(self) -> None:
        """Close its own descriptor."""
        super().close()
        if self._socket is not None:
            self._socket.close()
        elif self._is_own:
            os.close(self._fd)
            self._is_own = False

    def _write(self, data: bytes) -> bool:
        left = data
        while left:
            try:
                left = left[self._send(left) :]
            except OSError:  # no room, or no reader
                self._is_cut |= len(left) < len(data)
                return False
        self._is_cut = False
        return True

    def _send(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        if self._is_own:
            return os.write(self._fd, data)
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        if not poller.poll(0):
            raise BlockingIOError
        return os.write(self._fd, data[:_ROOM])


def _handler(waits: bool) -> logging.Handler:
    try:
        fd = sys.stderr.fileno()
    except (AttributeError, io.UnsupportedOperation):
        waits = True
    if waits or stat.S_ISREG(os.fstat(fd).st_mode):
        return logging.StreamHandler(sys.stderr)
    return UnwaitedLines(fd)


def begin(level: str, *, waits: bool = True) -> None:
    """Log to stderr in this process, including uncaught exceptions.

    `waits`: for whoever reads a pipe or terminal, else what they have no room for is left out.
    """
    handler = _handler(waits)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    sys.excepthook = _log_uncaught


def write(line: str) -> None:
    """Log another process's output as a line of its own, whatever it contains."""
    log = logging.getLogger(_WRITTEN)
    log.handle(log.makeRecord(_WRITTEN, logging.ERROR, "", 0, line, (), None))


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("this process ends", exc_info=(kind, error, traceback))
