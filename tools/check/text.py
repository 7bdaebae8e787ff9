"""Findings for people, as lines of text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from softnpu.tools.check.findings import Findings
from softnpu.tools.shared.console import format_count

_SHOWN: Final = 3


def lines(findings: Findings, left_out: int = 0) -> Iterator[str]:
    """Yield what is found, each cause with its places; last how much that is."""
    for finding in findings.found.values():
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        yield f"{finding.kind.value}: {finding.title}{times}"
        for place in finding.places:
            yield f"  {near(place.what)}: {place.process}"
            yield from (f"      {near(frame)}" for frame in place.frames[:_SHOWN])
        yield f"  mend: {finding.mend}"
        yield ""
    yield from (f"not checked: {line}" for line in findings.unseen)
    hidden = f", {format_count(left_out, 'finding')} suppressed" if left_out else ""
    found = format_count(len(findings.found), "finding")
    yield f"softnpu check: {found} in {format_count(findings.submissions, 'submission')}{hidden}"


def near(text: str) -> str:
    """Return a text with paths below the working directory relative to it."""
    return re.sub(rf"(^|\s){re.escape(str(Path.cwd()))}{os.sep}", r"\1", text)
