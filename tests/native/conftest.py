"""Fixtures of the tests of the native driver: the library, and programs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.native.building import build, compile_program

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0


class Run(Protocol):
    """Runs Python code in a process of its own, with the native driver in its environment."""

    def __call__(
        self, code: str, *arguments: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def native() -> NativeLibrary:
    """The libraries, built once for each state of the sources."""
    return build()


@pytest.fixture
def surroundings(native: NativeLibrary, private_dir: Path) -> dict[str, str]:
    """The environment of a program that uses the native driver with this test's daemon."""
    base = {**os.environ, "PYTHONPATH": str(ROOT)}
    return native.environment(private_dir / "npu.sock", base)


@pytest.fixture
def run(surroundings: dict[str, str]) -> Run:
    """The output and exit code of a program; with `check` it has to succeed."""

    def start(
        code: str, *arguments: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**surroundings, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return start


@pytest.fixture
def program(native: NativeLibrary, surroundings: dict[str, str], tmp_path: Path) -> RunProgram:
    """Builds a C++ program against the drop-in loader and runs it; its output."""

    def start(name: str, *arguments: str) -> str:
        path = compile_program(name, native, tmp_path)
        done = subprocess.run(
            [path, *arguments],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return start


CASES_LOOP = """
import json, traceback
failed = {}
for name, case in json.loads(sys.argv[-1]).items():
    print(name, flush=True)
    try:
        exec(case, {**globals(), "core": ov.Core()})
    except Exception:
        failed[name] = traceback.format_exc()
assert not failed, "\\n".join(f"{name}: {text}" for name, text in failed.items())
"""
"""Runs every case with names and a `Core` of its own, and says which ones failed."""


class RunProgram(Protocol):
    """Runs one of the C++ programs in `programs/`."""

    def __call__(self, name: str, *arguments: str) -> str: ...
