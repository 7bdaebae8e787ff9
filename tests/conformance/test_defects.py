"""Tests that the suite can fail: it does on each seeded defect, at the expected test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.conformance.defects import DEFECTS

ROOT = Path(__file__).parents[2]
BEHAVIOUR = Path(__file__).parent / "behaviour"
DEADLINE_S = 240.0


def outcomes(place: Path, report: Path) -> dict[str, str]:
    """Run the expected test of each defect on its driver, in one process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    options = ["--driver=defects", f"--daemon={place}", f"--junitxml={report}", str(BEHAVIOUR)]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert report.exists(), f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    found = {}
    for case in ET.parse(report).iter("testcase"):
        (defect,) = (name for name in DEFECTS if re.search(rf"[\[-]{name}[\]-]", case.get("name", "")))
        found[defect] = next((kind for kind in ("error", "failure") if case.find(kind) is not None), "passed")
    return found


def test_every_seeded_defect_is_caught(place: Path, tmp_path: Path) -> None:
    assert len(DEFECTS) >= 30
    assert outcomes(place, tmp_path / "report.xml") == dict.fromkeys(DEFECTS, "failure")
