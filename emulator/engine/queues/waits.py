"""Waiting queues: those whose submission waits for an event, an image, or the end of its modelled time.

There may be thousands of inactive ones, so nothing here scans all of them: signals are indexed by event, and
timeouts are ordered by time.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

from softnpu.emulator.engine.commands.steps import EventWait
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.queues.queue import EngineQueue, Place

_SLACK = 64
_BLOCKED, _PACED = Place.BLOCKED, Place.PACED
_Queues = dict[EngineQueue, None]  # ordered, with fast removal
Q = TypeVar("Q")


class Deadlines(Generic[Q]):
    """Due times of queues, one each. Removed ones stay in the heap as numbers only."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._number_of: dict[Q, int] = {}
        self._by_number: dict[int, Q] = {}

    def set(self, queue: Q, due_ns: int) -> None:
        """Set the only due time of a queue."""
        self.remove(queue)
        number = self._number_of[queue] = next(self._numbers)
        self._by_number[number] = queue
        heapq.heappush(self._heap, (due_ns, number))
        if len(self._heap) > 2 * len(self._by_number) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._by_number]
            heapq.heapify(self._heap)

    def remove(self, queue: Q) -> None:
        """Remove the due time of a queue; a no-op without one."""
        number = self._number_of.pop(queue, None)
        if number is not None:
            del self._by_number[number]

    def first_ns(self) -> int | None:
        """Return when the first is due."""
        while self._heap and self._heap[0][1] not in self._by_number:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int, most: int) -> list[Q]:
        """Take the queues due by now, at most `most`."""
        due: list[Q] = []
        while len(due) < most and (first_ns := self.first_ns()) is not None and first_ns <= now_ns:
            queue = self._by_number[self._heap[0][1]]
            self.remove(queue)
            due.append(queue)
        return due


class Waits:
    """Waiting queues, by reason. A queue's `place`, `wait`, `deadline_ns`, `resume_ns` hold its state.

    `deadlines`: those of blocked queues. `ends`: when modelled times are over, on the host's clock.
    """

    def __init__(self) -> None:
        self.blocked: _Queues = {}
        self.paced: _Queues = {}
        self._loading: _Queues = {}
        self._by_event: dict[Range, _Queues] = {}  # none of them empty
        self.deadlines: Deadlines[EngineQueue] = Deadlines()
        self.ends: Deadlines[EngineQueue] = Deadlines()

    def __len__(self) -> int:
        return len(self.blocked) + len(self.paced)

    def block(self, queue: EngineQueue, deadline_ns: int, wait: EventWait | None, loading: bool) -> None:
        """Set a queue aside; a wait keeps its first deadline, 0: none."""
        queue.place, queue.wait = _BLOCKED, wait
        self.blocked[queue] = None
        if loading:
            self._loading[queue] = None
        elif wait is not None:
            self._by_event.setdefault(wait.at, {})[queue] = None
        queue.deadline_ns = due_ns = queue.deadline_ns or deadline_ns
        if due_ns:
            self.deadlines.set(queue, due_ns)

    def pace(self, queue: EngineQueue) -> None:
        """Set a queue aside until the modelled time of its submission is over."""
        queue.place = _PACED
        self.paced[queue] = None
        self.ends.set(queue, queue.resume_ns)

    def leave(self, queue: EngineQueue) -> None:
        """Remove a queue that waits no longer; a no-op if it is not here."""
        self.blocked.pop(queue, None)
        self.paced.pop(queue, None)
        self.deadlines.remove(queue)
        self.ends.remove(queue)
        self._loading.pop(queue, None)
        wait, queue.wait = queue.wait, None
        if wait is not None and (waiting := self._by_event.get(wait.at)) is not None:
            waiting.pop(queue, None)
            if not waiting:
                del self._by_event[wait.at]

    def waiting_for(self, event: Range) -> list[EngineQueue]:
        """Return the queues that wait for an event."""
        return list(self._by_event.get(event, ()))

    def loading(self) -> list[EngineQueue]:
        """Return the queues that wait for an image."""
        return list(self._loading)
