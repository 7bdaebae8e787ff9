"""Tests that random models find defects: a few hundred reveal each one seeded into softnpu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.models.defects import DEFECTS

_ROOT = Path(__file__).parents[3]
_MOST_MODELS = 400


def _run(folder: Path, more: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )


@pytest.mark.parametrize("name", list(DEFECTS))
def test_a_seeded_defect_applies(name: str) -> None:
    assert DEFECTS[name].applies


def test_ten_defects_are_seeded_in_all_parts() -> None:
    parts = Counter(defect.part for defect in DEFECTS.values())
    assert {"executor", "overlap", "batch", "states", "dynamic shapes", "weights"} <= set(parts)
    assert sum(count for part, count in parts.items() if not part.startswith("regression")) >= 10


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(DEFECTS))
def test_a_seeded_defect_is_found(name: str, private_dir: Path) -> None:
    defect = DEFECTS[name]
    words = ["--models", str(_MOST_MODELS), "--seed", "defect", "--shrinks", "0", "--stop"]
    if defect.ways:
        words += ["--ways", *defect.ways]
    done = _run(private_dir, defect.environment(private_dir), *words)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "NEW:" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    key, way = re.findall(r"^NEW: .*\((\S+) ([^,)]+)", done.stdout, re.M)[0]
    again = _run(private_dir, {}, "--models", "1", "--replay", key, "--ways", way)
    assert again.returncode == 0, f"found without the defect too: {again.stdout[-3000:]}"
