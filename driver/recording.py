"""What a command list has recorded, and whether the device may still run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from softnpu.driver.memory import Block
    from softnpu.driver.progress import Progress


class Recording:
    """Where the commands between two resets of a list were submitted last.

    It lives as long as the list has these commands or a submission of them is in flight: by then the list may
    have been reset, destroyed or forgotten. It does not keep a queue alive.
    """

    def __init__(self) -> None:
        self._last: dict[Progress, int] = {}

    def submitted(self, progress: Progress, sequence: int) -> None:
        """Submission `sequence` of the queue with this progress executes it."""
        self._last[progress] = sequence

    def in_flight(self) -> bool:
        """Whether a submission of it may still run."""
        for progress, sequence in list(self._last.items()):
            if not progress.is_over(sequence):
                return True
            if progress.gone:
                self._last.pop(progress, None)
        return False


class Submission(NamedTuple):
    """What a queue executes: `size` bytes of commands, and what must stay alive meanwhile."""

    buffer: Block
    size: int
    used: object
    recording: Recording
