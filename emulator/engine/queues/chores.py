"""What the engine has to do for a session beside its submissions, in parts that others may come between.

Looking at a thousand rings because a doorbell was rung, or giving back what a context had, takes long only
for who has much. So it is done in turns of that session, on its account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from softnpu.emulator.engine.queues.polled import Polled
from softnpu.emulator.engine.share import Share

PART: Final = 16
"""Of what is looked at or given back, between two looks at what others wait for."""
Chore = Iterator[None]
"""Done when the iterator ends; others come between two of its parts."""


class Chores:
    """Those of one session on one level, which take turns with its queues."""

    def __init__(self, share: Share, level: int) -> None:
        self.share = share
        self.level = level
        self.ran_ns = 0
        self._chores: deque[Chore] = deque()

    def pending(self) -> bool:
        """Whether there is one; always, as long as it waits for its turn."""
        return bool(self._chores)

    def add(self, chore: Chore) -> None:
        self._chores.append(chore)

    def run_part(self) -> None:
        """Do a part of the oldest one."""
        chore = self._chores.popleft()
        if next(chore, _DONE) is not _DONE:
            self._chores.appendleft(chore)


_DONE = object()


class ChoreTable:
    """The chores of a device, by session and level. `waiting`: those that have something to do."""

    def __init__(self) -> None:
        self.waiting: Polled[Chores] = Polled()
        self._chores: dict[tuple[Share, int], Chores] = {}

    def add(self, share: Share, level: int, chore: Chore) -> None:
        """Have this done in turns of the session."""
        chores = self._chores.get((share, level))
        if chores is None:
            chores = self._chores[share, level] = Chores(share, level)
        chores.add(chore)
        self.waiting.add(chores)

    def next(self) -> Chores | None:
        """Return those whose session has used the least time, if any wait."""
        return min(self.waiting, key=lambda chores: chores.share.spent_ns[chores.level], default=None)

    def run_part(self, chores: Chores) -> None:
        """Do a part of what waits; whatever that raises, it is not done again."""
        try:
            chores.run_part()
        finally:
            if not chores.pending():
                self.waiting.discard(chores)
                del self._chores[chores.share, chores.level]
