"""What a command list has recorded, as those see it who wait for its end."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue
    from softnpu.driver.memory import Block


class Recording:
    """Where the commands between two resets of a list were submitted last.

    It lives as long as the list has these commands or a submission of them is in flight: by then the list may
    have been reset, destroyed or forgotten. It does not keep a queue alive.
    """

    def __init__(self) -> None:
        self._last: dict[weakref.ref[CommandQueue], int] = {}

    def submitted(self, queue: CommandQueue, sequence: int) -> None:
        """Submission `sequence` of the queue executes it."""
        self._last[queue.reference] = sequence

    def in_flight(self) -> bool:
        """Whether a submission of it may still run."""
        for reference, sequence in list(self._last.items()):
            queue = reference()
            if queue is None:
                self._last.pop(reference, None)
            elif not queue.is_over(sequence):
                return True
        return False


class Submission(NamedTuple):
    """What a queue executes: `size` bytes of commands, and what must stay alive meanwhile."""

    buffer: Block
    size: int
    used: object
    recording: Recording
