"""Every wrong program is found, at the right place; of the right ones none is reported."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.check.programs import KINDS, PROGRAMS
from tests.native.building import compile_program
from tests.support.cli import softnpu

OPENVINO = """
import os, sys
import numpy as np, openvino as ov
core = ov.Core()
queue = ov.AsyncInferQueue(core.compile_model(sys.argv[1], "NPU"), 2)
for _ in range(12):
    queue.start_async([np.ones((1, 1, 8, 8), np.float32)])
queue.wait_all()
print(sum("softnpu-frames" in os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")))
"""
ROOT = Path(__file__).parents[2]
ALSO = {
    "nobody_signals": {"destroyed-in-flight"},
    "each_waits_for_the_other": {"destroyed-in-flight"},
    "behind_a_refused_submission": {"destroyed-in-flight", "out-of-bounds"},
    "three_in_a_ring": {"destroyed-in-flight"},
    "signals_behind_its_own_wait": {"destroyed-in-flight"},
    "signaller_in_the_next_list": {"destroyed-in-flight"},
    "destroy_context": {"never-signalled"},
    "written_too_late": {"list-order"},
}
"""What else is wrong with a program whose queue is destroyed so that it ends."""

NATIVE = {
    **{kind: kind for kind in (
        "race", "list_order", "uninitialised_read", "freed_in_flight", "host_access_in_flight",
        "destroyed_in_flight", "use_after_free", "out_of_bounds", "unwritten_output", "fence_waited_twice",
        "deadlock", "lost_wake_up", "foreign_handle", "leak",
    )},
    "use_after_free_on_the_host": "use_after_free",
    "out_of_bounds_on_the_host": "out_of_bounds",
}  # fmt: skip
"""Functions of `wrong.cpp`, and the kind that is found in each."""

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


def test_all_that_ran_was_checked(report: Any) -> None:
    assert report["not_checked"] == []


def test_everything_found_belongs_to_a_program(found: Findings) -> None:
    assert not [key for key in found if "none" in key]


@pytest.mark.timeout(600)
def test_native_programs_are_found_alike(native: NativeLibrary, tmp_path: Path) -> None:
    made = compile_program("wrong", native, tmp_path, "-g", "-O0")
    output = tmp_path / "findings.json"
    folder = str(native.driver.parent)
    relative = os.path.relpath(made)  # frames name the program as it was called
    done = softnpu("check", "--json", output, "--", relative, SOFTNPU_SOCKET="", SOFTNPU_NATIVE_DIR=folder)
    assert (done.code, done.out) == (1, "done\n"), done.err
    report = json.loads(output.read_text())
    found = report["findings"]
    places = [
        [frame.split()[-1] for place in finding["places"] for frame in place["frames"]] for finding in found
    ]
    kinds = [finding["kind"].replace("-", "_") for finding in found]
    functions = [next(name for name in names if name in NATIVE) for names in places]
    also = [("deadlock", "destroyed_in_flight"), *[("leak", "leak")] * 3]
    assert sorted(zip(functions, kinds, strict=True)) == sorted([*NATIVE.items(), *also])
    assert all("wrong_form" in names for names in places)
    left = {finding["places"][0]["what"]: finding for finding in found if finding["kind"] == "leak"}
    assert sorted(left) == ["allocated", "context made", "fence made", "queue made"]
    assert (left["allocated"]["count"], "24,576 bytes" in left["allocated"]["title"]) == (3, True)
    assert report["not_checked"] == []  # of what the device has refused nothing ran


def test_checking_decides_no_context_for_a_device(native: NativeLibrary, tmp_path: Path) -> None:
    made = compile_program("two_devices", native, tmp_path)
    folder = str(native.driver.parent)
    platforms = ("--platform", "4000", "--platform", "3720")
    done = softnpu("check", *platforms, "--", made, SOFTNPU_SOCKET="", SOFTNPU_NATIVE_DIR=folder)
    assert (done.code, done.out) == (0, "done\n"), done.err


def test_unmodified_openvino_is_clean(native: NativeLibrary, digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "findings.json"
    folder = str(native.driver.parent)
    done = softnpu(
        "check", "--json", output, "--", sys.executable, "-P", "-c", OPENVINO, digits,
        SOFTNPU_SOCKET="", SOFTNPU_NATIVE_DIR=folder,
    )  # fmt: skip
    assert (done.code, done.out) == (0, "1\n"), done.err
    report = json.loads(output.read_text())
    assert (report["findings"], report["not_checked"]) == ([], [])
    assert report["submissions"] >= 12
