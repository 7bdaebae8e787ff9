"""The summed counters of engines that must not write the status page.

Only the primary engine maps the page. Each of the others has its own page, so that it can falsify only its
own figures; the supervisor writes their sum into the second half of the status page.
"""

from __future__ import annotations

import time

from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.supervisor.engines.status_page import LARGEST_WORDS, StatusPage, Words

PERIOD_S = 0.25
_REST = 50
_MOST = 1 << 56
"""Maximum accepted count of one engine: sums stay below 2**64."""
_SUMMED = (
    StatusWord.SUBMISSIONS,
    StatusWord.COMMANDS,
    StatusWord.INFERENCES,
    StatusWord.FAULTS,
    StatusWord.BUSY,
    StatusWord.STAGED,
    StatusWord.TILE_BUSY,
    StatusWord.OVERLAPPED,
    StatusWord.READ,
    StatusWord.WRITTEN,
    StatusWord.LATE,
    StatusWord.UNMODELLED,
)


class FunctionCounts:
    """The counters of the other engines of one device: of those that live, and of those that have ended."""

    def __init__(self, page: StatusPage, device: int) -> None:
        self._page = page
        self._device = device
        self._live: dict[StatusPage, Words] = {}
        self._ended = Words.zeros()
        self._due_s = 0.0

    def add(self, own: StatusPage) -> None:
        """Count an engine that writes this page."""
        self._live[own] = Words.zeros()

    def end(self, own: StatusPage) -> None:
        """Keep the counts of an ended engine."""
        self.refresh()
        last = self._live.pop(own)
        last.words[StatusWord.QUEUED] = 0
        self._add(self._ended, last)
        self._write()

    def of(self, own: StatusPage, word: StatusWord) -> int:
        """Return the engine's count on this page at the last reading."""
        return self._live[own].words[word]

    def refresh_if_due(self) -> None:
        """Read all pages again, unless that would take more than a fiftieth of the time."""
        started = time.monotonic()
        if started >= self._due_s:
            self.refresh()
            now = time.monotonic()
            self._due_s = now + _REST * (now - started)

    def refresh(self) -> None:
        """Read all pages again; nothing if there are none."""
        for own, last in self._live.items():
            _read(own, last)
        if self._live:
            self._write()

    def _write(self) -> None:
        total = Words.zeros()
        for each in (self._ended, *self._live.values()):
            self._add(total, each)
        self._page.set_others(self._device, total)

    @staticmethod
    def _add(total: Words, each: Words) -> None:
        for word in (*_SUMMED, StatusWord.QUEUED):
            total.words[word] += each.words[word]
        for word in LARGEST_WORDS:
            total.words[word] = max(total.words[word], each.words[word])
        total.times[:] = map(sum, zip(total.times, each.times, strict=True))


def _read(own: StatusPage, last: Words) -> None:
    """Counters only grow, whatever an engine writes."""
    now = own.engine_words()
    for word in (*_SUMMED, *LARGEST_WORDS):
        last.words[word] = max(last.words[word], min(now.words[word], _MOST))
    last.words[StatusWord.QUEUED] = min(now.words[StatusWord.QUEUED], _MOST)
    last.times[:] = [max(old, min(new, _MOST)) for old, new in zip(last.times, now.times, strict=True)]
