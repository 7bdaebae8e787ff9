"""Errors of the supervisor: internal ones, and mere shortages."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links.internal_errors import InternalErrors

log = logging.getLogger(__name__)

_SHORTAGES = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EAGAIN,
        errno.EFBIG,  # RLIMIT_FSIZE
        errno.ETOOMANYREFS,  # descriptors in flight in unread sockets
    }
)


def is_shortage(error: Exception) -> bool:
    """Whether an error reports a shortage of the machine or this process."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES)


class DaemonErrors(InternalErrors):
    """The errors of the supervisor. A shortage is logged, but is not internal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("daemon", clock=clock)

    def note(self, error: Exception, whose: str, object: str = "daemon") -> ErrorInfo:
        """Count an error, and log it if its kind is new; return the error for waiters.

        `whose`: what it ends, for the log.
        """
        if is_shortage(error):
            log.error("short of something, %s: %s: %s", whose, type(error).__name__, error)
            return _shortage_info(error)
        return super().note(error, whose, object)


def _shortage_info(error: Exception) -> ErrorInfo:
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return ErrorInfo(
            result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            object="daemon",
            found=str(error),
            expected="memory files as large as what is asked for",
            hint="raise the limit of file sizes (ulimit -f) of the daemon, or ask for less at once",
        )
    return ErrorInfo(
        result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        object="daemon",
        found=str(error) or type(error).__name__,
        expected="descriptors and memory to serve the request",
        hint="raise the descriptor limit of the daemon, or use fewer objects",
    )
