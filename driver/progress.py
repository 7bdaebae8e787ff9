"""How far a command queue has come: for those who ask about its submissions, also after its end."""

from __future__ import annotations


class Progress:
    """The number of submissions of one queue that have ended, and whether the device runs it no more.

    A command list, an event or a fence may ask after the queue was destroyed, or forgotten by Python, which
    destroys it a little later: until the device has confirmed that, its submissions may still run.
    """

    __slots__ = ("_at", "_longs", "gone")

    def __init__(self, longs: memoryview, completed_at: int) -> None:
        self._longs = longs
        self._at = completed_at
        self.gone = False

    def has_ended(self, sequence: int) -> bool:
        """Whether submission `sequence` has ended."""
        return self._longs[self._at] >= sequence

    def is_over(self, sequence: int) -> bool:
        """Whether submission `sequence` has ended or will never run: then nobody signals its fence."""
        return self._longs[self._at] >= sequence or self.gone
