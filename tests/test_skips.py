"""Tests that a skip in CI is a failure, in test runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no compiler")
def test_marked(): pass

def test_calls(): pytest.skip("no browser")

@pytest.fixture
def device(): pytest.skip("no device")

def test_fixture(device): pass

@pytest.mark.xfail(reason="later")
def test_expected(): assert False

def test_passes(): pass
"""
_REASONS = ("no compiler", "no browser", "no device")


def _run(folder: Path, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.skips", "--rootdir", str(folder), "-ra"]
    alone = {"PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    given = {**os.environ, **alone, **environment}
    done = subprocess.run(
        [*command, str(folder)],
        env=given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_skip_is_a_failure_in_ci_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS)
    code, told = _run(tmp_path, CI="true")
    assert code == 1
    assert all(f"{reason}\nIn CI a skip is a failure" in told for reason in _REASONS), told
    assert "= 1 failed, 1 passed, 1 xfailed, 2 errors in" in told.splitlines()[-1], told

    code, told = _run(tmp_path, CI="")
    assert code == 0
    assert "= 1 passed, 3 skipped, 1 xfailed in" in told.splitlines()[-1], told


def test_so_is_a_file_that_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    code, told = _run(tmp_path, CI="true")
    assert code == 2
    assert "could not import 'no_such_module'" in told
