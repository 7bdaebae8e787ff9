"""What `softnpu check` finds and does if asked."""

from __future__ import annotations

import json
import os
import subprocess
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


STARTED_BEFORE = """
import sys
sys.stdin.readline()
from softnpu.driver import Driver
from tests.check.rig import Rig, copy
with Driver.open() as driver:
    rig = Rig(driver)
    rig.submit(rig.one, copy(rig.memory(), rig.memory(None))).host_synchronize()
    print("copied", flush=True)
    sys.stdin.readline()
    rig.end()
"""


def test_a_daemon_checks_all_its_programs_also_those_started_before(
    tmp_path: Path, private_dir: Path
) -> None:
    notes, page, socket = tmp_path / "notes", tmp_path / "page.html", private_dir / "npu.sock"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SOFTNPU_SOCKET": str(socket)}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", STARTED_BEFORE],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        told = softnpu("daemon", "--socket", socket, "--check", notes).words
        assert f"'softnpu check --notes {notes}'" in told
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "copied\n"
        running = softnpu("check", "--notes", notes, "--html", page)
        print(file=program.stdin, flush=True)
    assert "stopped" in softnpu("stop", "--socket", socket).words
    ended = softnpu("check", "--notes", notes, "--exit-code", "3")
    assert (program.returncode, running.code, ended.code) == (0, 1, 3)
    for said in (running.err, page.read_text(), ended.err):
        assert "uninitialised-read" in said
    assert "files in it" in softnpu("daemon", "--socket", socket, "--check", notes).misuse


def test_a_program_or_notes_are_checked() -> None:
    assert "neither; expected a program after --, or --notes DIR" in softnpu("check").misuse
