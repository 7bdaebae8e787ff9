"""Chores: what a large session has left behind, freed in parts between which others are served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from softnpu.emulator.supervisor.reactor import Reactor, Timer

PART: Final = 256
"""Objects freed at once: 60,000 take a tenth of a second."""
Part = Callable[[], bool]
"""Do a part of a chore; return whether more is left. Repeated after an exception."""


class Chores:
    """The chores of all users, who take turns: one part in each round of the reactor."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._lines: dict[Hashable, deque[Part]] = {}  # by user, the next one first
        self._timer: Timer | None = None

    def add(self, user: Hashable, part: Part) -> None:
        """Do a part of it now, the others later."""
        line = self._lines.setdefault(user, deque())
        line.append(part)
        self._continue()
        if not part():
            line.remove(part)

    def _continue(self) -> None:
        if self._lines and self._timer is None:
            self._timer = self._reactor.after(0, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._lines:
            return
        user = next(iter(self._lines))
        line = self._lines[user] = self._lines.pop(user)  # after all others
        if line and not line[0]():
            line.popleft()
        if not line:
            del self._lines[user]
        self._continue()
