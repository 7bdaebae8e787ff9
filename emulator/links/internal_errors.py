"""Errors of our own code: each kind has a number, and occasionally a traceback in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from softnpu.emulator.interface.result import ErrorInfo, ZeResult

log = logging.getLogger(__name__)

_QUIET_S = 60.0
_MOST_KINDS = 256
_LONGEST = 200


class InternalErrors:
    """Counts and logs exceptions that should never occur. Thread-safe.

    `process`: its name for people. `prefix`: of its numbers, as all processes of a daemon share one log.
    `count`: all of them. An error of a kind (type and place) that was logged within a minute is only counted,
    and gets the number of the logged one.
    """

    def __init__(self, process: str, prefix: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._process = process
        self._prefix = prefix
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def note(self, error: Exception, whose: str, object: str) -> ErrorInfo:
        """Count an error, and log it if its kind is new; return the answer for those waiting for `object`.

        `whose`: what it ends, for the log.
        """
        with self._lock:
            self.count += 1
            kind, before = self._kind(error)
            is_news = kind is not before
            if not is_news:
                kind.unlogged += 1
        if is_news:
            again = f" ({before.unlogged} more like it since number {before.number})" if before else ""
            log.error("internal error %s, %s%s", kind.number, whose, again, exc_info=error)
        return ErrorInfo(
            result=ZeResult.ERROR_UNKNOWN,
            object=object,
            found=f"internal error {kind.number} of the {self._process} ({_described(error)})",
            expected="none; others are not affected",
            hint=f"please report it, with the lines of 'internal error {kind.number}' in the daemon's log",
        )

    def _kind(self, error: Exception) -> tuple[_Kind, _Kind | None]:
        """Return the kind of an error, and its previous state, which differs if it is to be logged."""
        now, key = self._clock(), _key_of(error)
        before = self._kinds.get(key)
        if before is not None and now - before.logged < _QUIET_S:
            return before, before
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[key] = kind = _Kind(f"{self._prefix}{self.count}", now)
        return kind, before


class _Kind:
    """A kind of error: the number and the time of the logged one, and how many came since."""

    def __init__(self, number: str, logged: float) -> None:
        self.number = number
        self.logged = logged
        self.unlogged = 0


def _key_of(error: Exception) -> tuple[object, ...]:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return type(error), *((place.tb_frame.f_code, place.tb_lineno) if place is not None else ())


def _described(error: Exception) -> str:
    """Return type and text of an error in plain ASCII, which fits any answer."""
    text = " ".join(str(error)[:_LONGEST].encode("ascii", "backslashreplace").decode().split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
