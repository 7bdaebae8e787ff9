"""Steps: decoded commands as calls, what they return, and what they may use of the running submission."""

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
"""A long command in parts: done when the iterator ends. Others run between two parts; a `Pause` says when."""

Step = Callable[[], Pause | Parts | None]
"""One command. None: done. `Pause`: call it again later. `Parts`: nothing is done yet, run the parts."""


class EventWait:
    """The step that waits for an event; `at` says where that is, for who signals it."""

    __slots__ = ("at", "event")

    def __init__(self, event: EventRecord, at: Range) -> None:
        self.event = event
        self.at = at

    def __call__(self) -> Pause | None:
        return None if self.event.signalled else BLOCKED


JOURNAL_EVERY = 64
"""Progress of a list whose commands may run twice is noted after so many commands."""


class RunningSubmission(Protocol):
    """What a step may use of the submission that runs."""

    def is_cancelled(self) -> bool:
        """Whether the submission must end now; reads what the supervisor has sent.

        Once True it stays True until the submission has ended.
        """
        ...

    def poll_overlap(self) -> bool:
        """Start inferences that may run beside the current one, then as `is_cancelled`."""
        ...

    def signalled(self, event: Range) -> None:
        """Let the queues that wait for this event go on."""
        ...

    def pending_effect(self) -> int | None:
        """Return what a dead engine noted for this step of this submission, or None."""
        ...

    def note_effect(self, value: int) -> None:
        """Note `value` for this step in memory that outlives the engine, before the effect begins.

        The step is then finished exactly once: by this engine, or by the next one, which reads the value.
        """
        ...

    def note_event(self, at: MemoryAt, changes: int) -> None:
        """Note how often commands have changed the event at `at`, before this step changes it.

        After a reset the next engine compares this number and skips the step if the change has happened.
        """
        ...

    def count_staged(self, size: int) -> None:
        """Count bytes that were copied because a tensor could not be used in place."""
        ...

    def count_traffic(self, read: int, written: int) -> None:
        """Count bytes of an inference whose sizes were not known when its program was decoded."""
        ...

    @property
    def is_modelled(self) -> bool:
        """Whether the device shows the modelled clock."""
        ...

    def device_ns(self) -> int:
        """Return how far the queue is on the modelled clock."""
        ...

    def advance(self, size: int) -> None:
        """Count a copy of so many bytes on the modelled clock."""
        ...

    def run_modelled(self, modelled: ModelledTime | None, started_ns: int) -> Parts | None:
        """Count an inference that began at `started_ns` on the modelled clock; wait for its end if paced."""
        ...

    def write_metrics(self, out: Words, done: Work) -> None:
        """Write the counters of the device into `out`; `done` of this submission is not in them yet."""
        ...
