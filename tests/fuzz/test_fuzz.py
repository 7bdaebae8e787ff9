"""The fuzzer against its own daemon: short in every run, full with `-m soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softnpu.emulator.interface.commands import CommandType
from tests.fuzz.frames import NEVER, TYPES
from tests.fuzz.shortage import LIMITS

_ROOT = Path(__file__).parents[2]
_AT_LEAST = 1 / 3
_NEVER_HONOURED = {"stop", *NEVER}
"""`tools/test_trace` tests valid tracers, `emulator/test_leases` valid leases."""
_NAMES = {CommandType.MEMORY_FILL: "Fill", CommandType.GRAPH_INITIALIZE: "GraphInit"}


def _fuzz(folder: Path, deadline_s: float, **cases: object) -> dict[str, Any]:
    """Run the command once; return its counts. Fail with its output."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in cases.items()]
    found = folder / "fuzz.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words, "--json", str(found)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(done.stdout)
    counted: dict[str, Any] = json.loads(found.read_text())
    return counted


def _check(found: dict[str, Any]) -> None:
    assert found["violations"] == []
    assert found["engine_restarts"] == 0
    assert found["bystander"]["inferences"] > 0
    for kind in ("frames", "rings", "blobs"):
        assert found["behind_the_first_check"][kind] > _AT_LEAST, found["behind_the_first_check"]
    accepted, sent = set(found["accepted"]), set(found["accepted"]) | set(found["refused"])
    assert set(TYPES) <= sent, f"never sent: {set(TYPES) - sent}"
    assert set(TYPES) - _NEVER_HONOURED <= accepted, f"never honoured: {set(TYPES) - accepted}"
    commands = {
        _NAMES.get(kind, "".join(part.title() for part in kind.name.split("_"))) for kind in CommandType
    }
    assert commands - {"Nop"} <= accepted, f"never executed: {commands - accepted}"


@pytest.mark.timeout(400)
def test_a_hostile_client_hurts_nobody(private_dir: Path) -> None:
    _check(_fuzz(private_dir, 360, frames=5_000, raw=750, rings=750, blobs=150, seed="short", jobs=3))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_frames_hurt_nobody(private_dir: Path) -> None:
    counts = {"frames": 1_000_000, "raw": 50_000, "rings": 100_000, "blobs": 20_000, "weights_files": 100_000}
    _check(_fuzz(private_dir, 7000, **counts, seed="soak"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=[] if at == "descriptors" else pytest.mark.soak) for at in LIMITS]
)
def test_a_daemon_at_a_limit_lives_serves_and_leaves_nothing(private_dir: Path, at: str) -> None:
    found = _fuzz(private_dir, 1100, at=at, frames=9_000, raw=1_000, rings=0, blobs=0, seed=f"at-{at}")
    assert found["violations"] == []
    assert found["engine_restarts"] == 0


def test_kernels(tmp_path: Path) -> None:
    _check_kernels(_fuzz(tmp_path, 120, kernels=150, found=tmp_path), 150)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_kernels(tmp_path: Path) -> None:
    """On request: ten minutes of the same with others."""
    _check_kernels(_fuzz(tmp_path, 3500, kernels=10_000, seed="soak", found=tmp_path), 10_000)


def _check_kernels(found: dict[str, Any], count: int) -> None:
    assert found["violations"] == []
    assert found["rounds"] == count
    for end in ("ran", "module", "bounds", "shape", "stack", "trap", "returned"):
        assert found["ends"].get(end, 0) > 0, f"none ended by {end}: {found['ends']}"
