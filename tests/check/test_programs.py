"""Every wrong program is found, at the right place; of the right ones none is reported."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.check.programs import KINDS, PROGRAMS
from tests.support.cli import softnpu

ROOT = Path(__file__).parents[2]
ALSO = {
    "nobody_signals": {"destroyed-in-flight"},
    "each_waits_for_the_other": {"destroyed-in-flight"},
    "destroy_context": {"never-signalled"},
    "written_too_late": {"list-order"},
}
"""What else is wrong with a program whose queue is destroyed so that it ends."""

Findings = dict[tuple[str, str], set[str]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is found in one run of all programs."""
    output = tmp_path_factory.mktemp("check") / "findings.json"
    program = ROOT / "tests" / "check" / "programs.py"
    done = softnpu(
        "check",
        "--json",
        output,
        "--",
        sys.executable,
        "-P",
        program,
        PYTHONPATH=str(ROOT),
        SOFTNPU_SOCKET="",
    )
    assert done.code == 1, (done.out, done.err)
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def found(report: Any) -> Findings:
    """The kinds of findings, by program and form."""
    kinds: Findings = defaultdict(set)
    for finding in report["findings"]:
        frames = [frame.split()[-1] for place in finding["places"] for frame in place["frames"]]
        name = next((frame for frame in frames if frame in PROGRAMS), "none")
        form = next((frame for frame in frames if frame in ("wrong_form", "right_form")), "none")
        kinds[name, form].add(finding["kind"])
    return kinds


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrong_program_is_found(name: str, found: Findings) -> None:
    kinds = found.get((name, "wrong_form"), set())
    assert KINDS[name] in kinds
    assert kinds <= {KINDS[name]} | ALSO.get(name, set())


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_program_is_not_reported(name: str, found: Findings) -> None:
    assert (name, "right_form") not in found


def test_everything_found_belongs_to_a_program(found: Findings) -> None:
    assert not [key for key in found if "none" in key]
