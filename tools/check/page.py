"""The findings as an HTML page."""

from __future__ import annotations

import time
from pathlib import Path

from softnpu.tools.check.findings import WASTE, Findings
from softnpu.tools.check.text import near
from softnpu.tools.shared.pages import rendering


def write_page(path: Path, findings: Findings, left_out: int, program: str) -> None:
    """Write all findings to a file. Raise `ToolError` without jinja2, and `OSError`."""
    values = {
        "findings": list(findings.found.values()),
        "unseen": findings.unseen,
        "submissions": findings.submissions,
        "left_out": left_out,
        "program": program,
        "waste": WASTE,
        "when": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    rendering.write(path, "check.html", values, near=near)
