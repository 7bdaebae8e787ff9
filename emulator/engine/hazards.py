"""Which lists must be noted command by command: those that overwrite what they have read.

In a list without inferences and events it is noted now and then how far it came, and after an engine's death
the commands since the last note run again. That changes nothing as long as none of them has overwritten what
an earlier one of them reads.
"""

from __future__ import annotations

from softnpu.emulator.engine.steps import NOTED_EVERY

File = tuple[int, int]


class Hazards:
    """What the commands since the last note have read, by file. `found`: a later one of them overwrites some.

    `any`: whether they have read anything, so that writes matter.
    """

    __slots__ = ("_reads", "any", "found")

    def __init__(self) -> None:
        self.found = self.any = False
        self._reads: dict[File, tuple[int, int, list[tuple[int, int]]]] = {}

    def begin(self, step: int) -> None:
        """The next command is this step. The runner notes after step 0, and then every `NOTED_EVERY`."""
        if self.any and step & (NOTED_EVERY - 1) == 1:
            self._forget()

    def read(self, file: File, start: int, end: int) -> None:
        """The next command reads these bytes."""
        if self.found:
            return
        self.any = True
        known = self._reads.get(file)
        if known is None:
            self._reads[file] = start, end, [(start, end)]
            return
        low, high, ranges = known
        ranges.append((start, end))
        if start < low or end > high:
            self._reads[file] = min(low, start), max(high, end), ranges

    def write(self, file: File, start: int, end: int) -> None:
        """The next command writes these bytes; its own reads are told afterwards."""
        known = self._reads.get(file)
        # a look at both ends first: most lists copy from one place to another, far from it
        if known is None or end <= known[0] or start >= known[1]:
            return
        if any(first < end and start < last for first, last in known[2]):
            self.found = True
            self._forget()

    def _forget(self) -> None:
        self.any = False
        self._reads.clear()
