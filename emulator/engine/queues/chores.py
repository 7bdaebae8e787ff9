"""Chores: an engine's work for a session besides its submissions, in interruptible parts.

Checking a thousand rings after a doorbell, or releasing a large context, is slow only for sessions that own
much. So a chore is scheduled and charged as its session's work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from softnpu.emulator.engine.queues.polled import Polled
from softnpu.emulator.engine.share import Share

PART: Final = 16
"""Items checked or released between two polls for other work."""
Chore = Iterator[None]
"""Ends with the iterator; other work may run between its parts."""


class Chores:
    """The chores of one session on one level, which take turns with its queues."""

    def __init__(self, share: Share, level: int) -> None:
        self.share = share
        self.level = level
        self.ran_ns = 0
        self._chores: deque[Chore] = deque()

    def pending(self) -> bool:
        """Whether chores are left; always true while scheduled."""
        return bool(self._chores)

    def add(self, chore: Chore) -> None:
        self._chores.append(chore)

    def run_part(self) -> None:
        """Run a part of the oldest chore."""
        chore = self._chores.popleft()
        if next(chore, _DONE) is not _DONE:
            self._chores.appendleft(chore)


_DONE = object()


class ChoreTable:
    """A device's chores, by session and level. `waiting` holds the pending ones."""

    def __init__(self) -> None:
        self.waiting: Polled[Chores] = Polled()
        self._chores: dict[tuple[Share, int], Chores] = {}

    def add(self, share: Share, level: int, chore: Chore) -> None:
        """Queue a chore, to be run in the session's turns."""
        chores = self._chores.get((share, level))
        if chores is None:
            chores = self._chores[share, level] = Chores(share, level)
        chores.add(chore)
        self.waiting.add(chores)

    def next(self) -> Chores | None:
        """Return the pending chores of the session that has used least time, if any."""
        return min(self.waiting, key=lambda chores: chores.share.spent_ns[chores.level], default=None)

    def run_part(self, chores: Chores) -> None:
        """Run part of the oldest chore; drop it if it raises."""
        try:
            chores.run_part()
        finally:
            if not chores.pending():
                self.waiting.discard(chores)
                del self._chores[chores.share, chores.level]
