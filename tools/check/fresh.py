"""What is found while programs still run: each time what was not told before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from softnpu.tools.check.analysis import analyse
from softnpu.tools.check.text import lines


class Fresh:
    """The findings in a folder of notes that grows."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._told: Counter[tuple[object, ...]] = Counter()

    def report(self) -> str:
        """Return the causes met since the last report, as text; empty if there are none."""
        findings = analyse(self._notes)
        told, self._told = self._told, Counter({key: each.count for key, each in findings.found.items()})
        findings.found = {key: each for key, each in findings.found.items() if each.count > told[key]}
        return "\n".join(lines(findings)) if findings.found else ""
