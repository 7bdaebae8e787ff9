"""Steps: decoded commands as calls, their results, and their view of the running submission."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Protocol

from softnpu.emulator.common.arrays import Words
from softnpu.emulator.engine.counters import Work
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.shared import EventRecord
from softnpu.emulator.openvino.modelled_time import ModelledTime


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


class RunningSubmission(Protocol):
    """The interface of the running submission for its steps."""

    def is_cancelled(self) -> bool:
        """Whether the submission must end now; reads messages from the supervisor.

        Once True it stays True until the submission has ended.
        """
        ...

    def poll_overlap(self) -> bool:
        """Start inferences eligible to overlap the current one, then return `is_cancelled`."""
        ...

    def signalled(self, event: Range) -> None:
        """Wake the queues that wait for this event."""
        ...

    def pending_effect(self) -> int | None:
        """Return the value that a dead engine logged for this step, or None."""
        ...

    def note_effect(self, value: int) -> None:
        """Log `value` for this step in memory that outlives the engine, before the effect begins.

        The step is then finished exactly once: by this engine, or by the next one, which reads the value.
        """
        ...

    def note_event(self, at: MemoryAt, changes: int) -> None:
        """Log how often commands have changed the event at `at`, before this step changes it.

        After a reset the next engine compares this count and skips the step if the change has happened.
        """
        ...

    def count_staged(self, size: int) -> None:
        """Count bytes copied because a tensor could not be used in place."""
        ...

    def count_traffic(self, read: int, written: int) -> None:
        """Count bytes of an inference whose sizes were unknown at decoding."""
        ...

    @property
    def is_modelled(self) -> bool:
        """Whether the device shows the modelled clock."""
        ...

    def device_ns(self) -> int:
        """Return the queue's position on the modelled clock."""
        ...

    def advance(self, size: int) -> None:
        """Count a copy of `size` bytes on the modelled clock."""
        ...

    def run_modelled(self, modelled: ModelledTime | None, started_ns: int) -> Parts | None:
        """Count an inference that began at `started_ns` on the modelled clock; wait for its end if paced."""
        ...

    def write_metrics(self, out: Words, done: Work) -> None:
        """Write the counters of the device into `out`, plus the work `done` by this submission so far."""
        ...
