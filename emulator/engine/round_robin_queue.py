"""Fair order of loads: sessions take turns, so that one with a hundred images delays no other."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobinQueue(Generic[T]):
    """A queue between threads: FIFO within each session, round-robin between sessions."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[int, deque[T]] = {}  # never empty; the next session first

    def put(self, session: int, item: T) -> None:
        with self._changed:
            self._lines.setdefault(session, deque()).append(item)
            self._changed.notify()

    def empty(self) -> bool:
        return not self._lines

    def get(self, timeout_s: float | None) -> T | None:
        """Take the next item; return None on timeout."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._lines, timeout_s):
                return None
            session = next(iter(self._lines))
            line = self._lines.pop(session)
            item = line.popleft()
            if line:
                self._lines[session] = line  # after all others
            return item
