"""Whose image is loaded next: who asks takes turns, so that a hundred images of one keep nobody waiting."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class LoadTurns(Generic[T]):
    """A queue between threads. Each session's items come in their order, the sessions one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[int, deque[T]] = {}  # never empty ones; the next session first

    def put(self, session: int, item: T) -> None:
        with self._changed:
            self._lines.setdefault(session, deque()).append(item)
            self._changed.notify()

    def empty(self) -> bool:
        return not self._lines

    def get(self, timeout_s: float | None) -> T | None:
        """Take the next one; None if there is none in this time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._lines, timeout_s):
                return None
            session = next(iter(self._lines))
            line = self._lines.pop(session)
            item = line.popleft()
            if line:
                self._lines[session] = line  # behind all others
            return item
