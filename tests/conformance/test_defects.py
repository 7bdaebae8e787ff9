"""The proof that the suite can fail: on every driver with a seeded defect it does, at the expected test."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.conformance.defects import DEFECTS

ROOT = Path(__file__).parents[2]
BEHAVIOUR = Path(__file__).parent / "behaviour"
DEADLINE_S = 60.0


def run(name: str, place: Path, module: str, keyword: str, report: Path) -> tuple[set[str], int]:
    """Runs part of the suite on a driver; the tests that failed, and how many ran."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
        f"--driver={name}",
        *(f"--daemon={place}", f"--junitxml={report}", f"-k={keyword}", str(BEHAVIOUR / module)),
    ]
    # the plugins that happen to be installed are a third of the time of such a run
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert report.exists(), f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    cases = list(ET.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None]
    broken = [case.get("name") for case in cases if case.find("error") is not None]
    assert broken == [], f"the run itself is broken:\n{done.stdout}"
    return {str(case.get("name")) for case in failed}, len(cases)


@pytest.mark.parametrize("name", DEFECTS)
def test_seeded_defect_is_caught(name: str, place: Path, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    failed, ran = run(f"defect:{name}", place, defect.module, defect.keyword, tmp_path / "report.xml")
    assert defect.expected in failed, f"{ran} tests ran, {sorted(failed)} failed"
