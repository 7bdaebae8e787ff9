"""Detection of lists that overwrite what they have read: their progress is logged after each command.

In a list without inferences and events progress is logged periodically, and after an engine reset the
commands since the last log entry run again. That is harmless unless one of them has overwritten the input of
an earlier one.
"""

from __future__ import annotations

from softnpu.emulator.engine.commands.steps import JOURNAL_EVERY

File = tuple[int, int]


class Hazards:
    """The bytes read by the commands since the last log entry, by file.

    `overwritten`: a later command overwrites some of them. `any_reads`: some were read, so writes matter.
    """

    __slots__ = ("_reads", "any_reads", "overwritten")

    def __init__(self) -> None:
        self.overwritten = self.any_reads = False
        self._reads: dict[File, tuple[int, int, list[tuple[int, int]]]] = {}

    def begin(self, step: int) -> None:
        """Begin a step. The runner logs progress after step 0, then every `JOURNAL_EVERY` steps."""
        if self.any_reads and step & (JOURNAL_EVERY - 1) == 1:
            self._clear()

    def read(self, file: File, start: int, end: int) -> None:
        """Record that the current command reads these bytes."""
        if self.overwritten:
            return
        self.any_reads = True
        known = self._reads.get(file)
        if known is None:
            self._reads[file] = start, end, [(start, end)]
            return
        low, high, ranges = known
        ranges.append((start, end))
        if start < low or end > high:
            self._reads[file] = min(low, start), max(high, end), ranges

    def write(self, file: File, start: int, end: int) -> None:
        """Record that the current command writes these bytes; call it before `read`."""
        known = self._reads.get(file)
        # both ends first: most lists write far from what they read
        if known is None or end <= known[0] or start >= known[1]:
            return
        if any(first < end and start < last for first, last in known[2]):
            self.overwritten = True
            self._clear()

    def _clear(self) -> None:
        self.any_reads = False
        self._reads.clear()
