"""`softnpu bench native`: the figures that it gives, and what it says when it cannot measure.

No test looks at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from softnpu.driver import native_library
from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.tools.bench import cli, native
from softnpu.tools.bench.result import Measurement, alone
from softnpu.tools.failures import ToolError
from tests.support.cli import softnpu


def test_a_round_trip_from_cpp_is_compared_with_semaphores(
    native_dir: dict[str, str], private_dir: Path
) -> None:
    folder = private_dir / "tmp"
    folder.mkdir()
    words = softnpu("bench", "native", "-n", "30", "--json", TMPDIR=str(folder), **native_dir).words
    assert list(folder.iterdir()) == []
    found = [msgspec.json.decode(line, type=Measurement) for line in words.splitlines()]
    assert all((row.bench, row.peer) == ("native", "semaphore pair") for row in found)
    assert all(row.value > 0 and row.peer_value and row.ratio for row in found)
    targets = {row.metric: row.target for row in found}
    assert targets.pop("round trip asleep, one core") is None
    if len(os.sched_getaffinity(0)) > 1:
        assert targets == {"round trip asleep, two cores": 1.2, "round trip with spin, two cores": 0.4}


# ------------------------------------------------------------ what cannot be measured


def test_without_a_compiler_it_is_refused(native_dir: dict[str, str], tmp_path: Path) -> None:
    complaint = softnpu("bench", "native", PATH=str(tmp_path), CXX="", **native_dir).complaint
    assert complaint.startswith("C++ compiler: none of c++, g++, clang++; expected one that builds")


def test_a_compiler_that_is_not_there_is_named(native_dir: dict[str, str]) -> None:
    assert (
        "no nonesuch, which CXX names" in softnpu("bench", "native", CXX="nonesuch", **native_dir).complaint
    )


def test_without_the_library_it_is_refused(tmp_path: Path) -> None:
    complaint = softnpu("bench", "native", **{ENV_NATIVE_DIR: str(tmp_path)}).complaint
    assert complaint.startswith(f"native driver: no file {tmp_path}")


def test_the_whole_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> Iterator[Measurement]:
        raise ToolError("C++ compiler", found="none")

    monkeypatch.setattr(native, "run", refuse)
    for name in ("_submit", "_infer", "_memory"):
        monkeypatch.setattr(cli, name, lambda *_: iter(()))
    monkeypatch.setattr(cli.lists, "run", lambda *_: iter((alone("lists", "nothing", "us", 1),)))
    monkeypatch.setattr(cli.copies, "run", lambda *_: iter(()))
    finished = CliRunner().invoke(cli.app, ["--json"])
    assert finished.exit_code == 0
    assert msgspec.json.decode(finished.stdout, type=Measurement).bench == "lists"


def test_a_program_that_ends_tells_why(
    native_dir: dict[str, str], monkeypatch: pytest.MonkeyPatch, private_dir: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_NATIVE_DIR, native_dir[ENV_NATIVE_DIR])
    library = native_library.find()
    program = native.build(library, native.find_compiler(), tmp_path)
    with (
        native.RoundTrips(library, program, private_dir / "none.sock", 0) as trips,
        pytest.raises(ToolError, match=r"^round_trip: it ended with code 1: .*no socket there"),
    ):
        trips.round(1)
