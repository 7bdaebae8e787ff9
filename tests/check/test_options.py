"""What `softnpu check` finds and does if asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.cli import softnpu

ROOT = Path(__file__).parents[2]
WASTE = ROOT / "tests" / "check" / "waste.py"


def test_waste_is_found_if_asked_for_and_the_spared_form_is_not(tmp_path: Path) -> None:
    output = tmp_path / "findings.json"
    command = ("--json", output, "--", sys.executable, "-P", WASTE)
    done = softnpu("check", "--waste", *command, PYTHONPATH=str(ROOT), SOFTNPU_SOCKET="")
    assert done.code == 1, (done.out, done.err)
    found = [
        (finding["kind"], finding["count"], next(f for f in places if f in ("wasteful", "spared")))
        for finding in json.loads(output.read_text())["findings"]
        for places in [[frame.split()[-1] for frame in finding["places"][0]["frames"]]]
    ]
    assert sorted(found) == [("unused-memory", 2, "wasteful")]
    assert softnpu("check", *command, PYTHONPATH=str(ROOT), SOFTNPU_SOCKET="").code == 0
