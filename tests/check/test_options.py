"""What `softnpu check` finds and does if asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.conftest import OpenContext, StartDaemon
from tests.native.building import compile_program
from tests.support.cli import softnpu
from tests.support.work import check_works

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
    assert sorted(found) == [
        ("avoidable-copy", 1, "wasteful"),
        ("avoidable-copy", 1, "wasteful"),
        ("copied-again", 4, "wasteful"),
        ("recorded-again", 3, "wasteful"),
        ("serial-waits", 9, "wasteful"),
        ("unused-memory", 2, "wasteful"),
    ]
    assert softnpu("check", *command, PYTHONPATH=str(ROOT), SOFTNPU_SOCKET="").code == 0


ENDING = ("--idle-timeout", "60")
"""A daemon ends also if its test fails."""
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
        told = softnpu("daemon", "--socket", socket, "--check", notes, *ENDING).words
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


TWICE = """
from softnpu.driver import Driver
from tests.check.rig import Rig, copy
def copy_fresh(rig):
    rig.submit(rig.one, copy(rig.memory(), rig.memory(None))).host_synchronize()
    print("synchronized")
with Driver.open() as driver:
    rig = Rig(driver)
    rig.submit(rig.one, copy(rig.memory(), rig.memory())).host_synchronize()
    print("right")
    copy_fresh(rig)
    copy_fresh(rig)
"""


def test_the_first_finding_ends_the_program_there(tmp_path: Path) -> None:
    output = tmp_path / "findings.json"
    command = ("--first", "--json", output, "--", sys.executable, "-P", "-u", "-c", TWICE)
    done = softnpu("check", *command, PYTHONPATH=str(ROOT), SOFTNPU_SOCKET="")
    assert (done.code, done.out) == (128 + signal.SIGTRAP, "right\n"), done.err
    assert done.err.count("uninitialised-read") == 1
    assert [finding["count"] for finding in json.loads(output.read_text())["findings"]] == [1]


BEHIND = """
import ctypes, sys
from softnpu.driver import Driver
from tests.check.rig import BYTES, Rig, copy
def behind_the_end(rig, memory):
    if sys.argv[1] == "access":
        ctypes.memset(memory.address + BYTES, 1, 1)
    else:
        copy(memory, rig.memory(), BYTES + 1)(rig.context.create_command_list())
with Driver.open() as driver:
    rig = Rig(driver)
    memory = rig.memory()
    print("right")
    behind_the_end(rig, memory)
    print("behind")
"""


@pytest.mark.parametrize("what", ["access", "copy"])
def test_what_passes_the_end_of_memory_ends_the_program_there(what: str) -> None:
    command = ("--first", "--", sys.executable, "-P", "-u", "-c", BEHIND, what)
    done = softnpu("check", *command, PYTHONPATH=str(ROOT), SOFTNPU_SOCKET="")
    assert (done.code, done.out) == (128 + signal.SIGTRAP, "right\n"), done.err
    assert "out-of-bounds" in done.err
    assert "behind_the_end" in done.err


def test_the_first_finding_ends_a_native_program(native: NativeLibrary, tmp_path: Path) -> None:
    made = compile_program("wrong", native, tmp_path, "-g", "-O0")
    folder = str(native.driver.parent)
    done = softnpu("check", "--first", "--", made, SOFTNPU_SOCKET="", SOFTNPU_NATIVE_DIR=folder)
    assert (done.code, done.out) == (128 + signal.SIGTRAP, ""), done.err
    assert "softnpu check: 1 finding in 2 submissions" in done.err
    assert "race: two queues" in done.err


def test_the_first_finding_stops_the_program_in_pdb(tmp_path: Path) -> None:
    output = tmp_path / "findings.json"
    code = "from softnpu.tools.cli import main; main()"
    command = ("--debugger", "pdb", "--json", output, "--", sys.executable, "-P", "-u", "-c", TWICE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "check", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOFTNPU_SOCKET": ""},
        input="where\ncontinue\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    before, stop, after = done.stdout.partition("> <string>(6)copy_fresh()")
    assert ("synchronized" in before, bool(stop), after.count("synchronized")) == (False, True, 2), before
    assert [finding["count"] for finding in json.loads(output.read_text())["findings"]] == [1, 1]


def test_only_a_program_is_stopped_and_by_a_known_debugger(tmp_path: Path) -> None:
    assert "gdb or pdb" in softnpu("check", "--debugger", "lldb", "--", "true").misuse
    assert "a program that it stops" in softnpu("check", "--first", "--notes", tmp_path).misuse


def test_a_program_that_cannot_write_notes_goes_on(tmp_path: Path, private_dir: Path) -> None:
    notes, socket = tmp_path / "notes", private_dir / "npu.sock"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SOFTNPU_SOCKET": str(socket)}
    assert softnpu("daemon", "--socket", socket, "--check", notes, *ENDING).code == 0
    shutil.rmtree(notes)
    done = subprocess.run(
        [sys.executable, "-P", "-c", STARTED_BEFORE],
        env=variables, input="\n\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "stopped" in softnpu("stop", "--socket", socket).words
    assert (done.returncode, done.stdout) == (0, "copied\n"), done.stderr
    assert "is not checked: [Errno 2]" in done.stderr


def test_one_program_is_checked_on_a_daemon_that_others_use(
    start_daemon: StartDaemon, open_context: OpenContext, tmp_path: Path
) -> None:
    daemon, output = start_daemon(), tmp_path / "found.json"
    neighbour = open_context(daemon)
    check_works(neighbour)
    engine = daemon.status().engines[0].engine_pid
    program = (sys.executable, "-P", "-m", "softnpu.tools.examples.race_between_processes")
    done = softnpu("check", "--shared", "--json", output, "--", *program, SOFTNPU_SOCKET=str(daemon.socket))
    assert done.code == 1, (done.out, done.err)
    report = json.loads(output.read_text())
    found = [(finding["kind"], finding["count"]) for finding in report["findings"]]
    # two processes, each with an engine of its own; nothing of the neighbour, whose engine notes nothing
    assert (found, report["submissions"], report["not_checked"]) == ([("race", 1)], 2, [])
    check_works(neighbour)
    assert daemon.status().engines[0].engine_pid == engine
