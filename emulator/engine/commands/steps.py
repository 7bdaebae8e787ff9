"""Steps: decoded commands as calls, their results, and their view of a queue."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Protocol

from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.shared import EventRecord


class Pause(enum.Enum):
    """Why a submission does not continue now."""

    BLOCKED = "waits for an event; the watchdog counts the time"
    LOADING = "waits for an image that is being loaded again after an engine reset"
    PREEMPTED = "made room for a queue with precedence"
    PACED = "has computed; its modelled time is not over"
    CANCELLED = "was cancelled or aborted, or its queue is gone; its outputs are void"


# module constants: reading a member of an enumeration takes 50 ns
BLOCKED = Pause.BLOCKED
LOADING = Pause.LOADING
PREEMPTED = Pause.PREEMPTED
PACED = Pause.PACED
CANCELLED = Pause.CANCELLED

Parts = Iterator[Pause | None]
"""A long command in parts: done when the iterator ends. Others run between parts that yield a `Pause`."""

Step = Callable[[], Pause | Parts | None]
"""One command. None: done. `Pause`: call it again later. `Parts`: nothing done yet, run the parts."""


class EventWait:
    """The step that waits for an event; `at` is its location, by which signallers find it."""

    __slots__ = ("at", "event")

    def __init__(self, event: EventRecord, at: Range) -> None:
        self.event = event
        self.at = at

    def __call__(self) -> Pause | None:
        return None if self.event.signalled else BLOCKED


JOURNAL_EVERY = 64
"""Number of commands between log entries of a list whose commands are repeatable."""


class StepQueue(Protocol):
    """The queue of the running submission as seen by its steps: see `EngineQueue`."""

    completed: int
    step: int
    device_ns: int
    resume_ns: int
    paced_end: tuple[frozenset[tuple[int, int]], int]

    def waiting(self) -> int: ...
    def pending_intent(self) -> int | None: ...
    def log_intent(self, value: int) -> None: ...
    def log_event_intent(self, at: MemoryAt, changes: int) -> None: ...
