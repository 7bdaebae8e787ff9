"""The log of a daemon: one line per record, from whichever process.

Records contain names chosen by others: of clients, models, layers, files. No name can start a line or reach a
terminal as a control sequence.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from softnpu.emulator.common.printable import printable

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_INDENT = "  "
_WRITTEN = f"{__name__}.written"
"""Logger of complete lines."""


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


def begin(level: str) -> None:
    """Log to stderr in this process, including uncaught exceptions."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    sys.excepthook = _log_uncaught


def write(line: str) -> None:
    """Log another process's output as a line of its own, whatever it contains."""
    log = logging.getLogger(_WRITTEN)
    log.handle(log.makeRecord(_WRITTEN, logging.ERROR, "", 0, line, (), None))


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("this process ends", exc_info=(kind, error, traceback))
