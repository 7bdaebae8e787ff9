"""Fixtures of the native driver's tests: the library, and programs that use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from softnpu.driver.native_library import NativeLibrary
from softnpu.emulator.openvino.defects import saturated_sums
from tests.native.building import build, compile_program
from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
DEADLINE_S = 220.0

CPU = {"INFERENCE_PRECISION_HINT": "f32", **saturated_sums.properties()}
"""Settings with which the CPU device computes like the emulated one."""
OPENVINO = (
    f"CPU = {CPU}"
    + """
import io, os, sys, threading
import numpy as np, openvino as ov
import openvino.opset13 as op
core = ov.Core()
rng = np.random.default_rng(1)
DIGITS = sys.argv[1]
def digits(batch=1):
    model = ov.Core().read_model(DIGITS)
    model.reshape([batch, 1, 8, 8])
    return model
def images(batch=1): return rng.random((batch, 1, 8, 8), np.float32)
def on_cpu(model, inputs):
    return list(ov.Core().compile_model(model, "CPU", CPU)(inputs).values())
def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and np.array_equal(one, other), (one, other)
def check(compiled, model, *inputs):
    same(list(compiled(list(inputs)).values()), on_cpu(model, list(inputs)))
"""
)

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
"""Run every case with its own names and its own `Core`, and print which ones failed."""


def finished(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    check: bool = True,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Return the output and exit code of a program; with `check` it must succeed."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=deadline_s, check=False
    )
    if check:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


class Run(Protocol):
    """Run Python code in its own process, with the native driver in its environment."""

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
    """Run a program; return its output and exit code. With `check` it must succeed."""

    def start(
        code: str, *arguments: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", code, *arguments]
        return finished(command, {**surroundings, **(environment or {})}, check)

    return start


class RunCases(Protocol):
    """Run cases of code with unmodified OpenVINO; `helpers` are available to all of them."""

    def __call__(self, cases: Mapping[str, str], helpers: str = "") -> None: ...


@pytest.fixture
def run_cases(shared_daemon: Daemon, run: Run, digits: Path, tmp_path: Path) -> RunCases:
    """The folder of the test is `sys.argv[2]`."""

    def start(cases: Mapping[str, str], helpers: str = "") -> None:
        words = (str(digits), str(tmp_path), json.dumps(dict(cases)))
        environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket)}
        run(OPENVINO + helpers + CASES_LOOP, *words, environment=environment)

    return start


@contextmanager
def client(
    code: str, environment: Mapping[str, str], line: str, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """A program to talk to while it runs; it has printed `line`, and must succeed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"
        yield process
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def program(native: NativeLibrary, surroundings: dict[str, str], tmp_path: Path) -> RunProgram:
    """Build a C++ program against the drop-in loader, run it, and return its output."""

    def start(name: str, *arguments: str) -> str:
        return finished([compile_program(name, native, tmp_path), *arguments], surroundings).stdout

    return start


class RunProgram(Protocol):
    """Run one of the C++ programs in `programs/`."""

    def __call__(self, name: str, *arguments: str) -> str: ...
