"""The pytest plugin, as somebody uses it who tests a program of his own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 120.0
PROLOGUE = """
import os, subprocess, sys
import numpy as np, openvino as ov
DIGITS = os.environ["DIGITS"]
"""
IN_PROCESS = (
    PROLOGUE
    + """
def test_openvino(softnpu_device):
    core = ov.Core()
    model = core.read_model(DIGITS)
    model.reshape([1, 1, 8, 8])
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    ours = core.compile_model(model, "NPU")([image])[0]
    theirs = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([image])[0]
    assert np.array_equal(ours, theirs)

def devices(environment):
    code = "import openvino as ov; print(*ov.Core().available_devices)"
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()

def test_other_programs(softnpu_device):
    assert "NPU" in devices(softnpu_device.environment)
    assert "NPU" in devices(None)
"""
)
PLATFORM = """
import openvino as ov
def test_platform(softnpu_device):
    assert ov.Core().get_property("NPU", "DEVICE_ARCHITECTURE") == "3720"
"""
FAILING = """
def test_it(softnpu_device):
    environment = softnpu_device.environment
    assert "SOME_OTHER" in environment
"""
WHO = """
import os, pytest
@pytest.mark.parametrize("number", range(4))
def test_who(softnpu_device, number):
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {softnpu_device.socket}\\n")
"""


def _pytest(
    folder: Path, tests: str, environment: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "test_theirs.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # nothing else that is installed takes part, and an installed softnpu does not bring its plugin twice
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "softnpu.tools.pytest_plugin", *options],
        cwd=folder,
        env={**os.environ, **alone, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_unmodified_openvino_finds_the_device(
    tmp_path: Path, native_dir: dict[str, str], digits: Path
) -> None:
    done = _pytest(tmp_path, IN_PROCESS, {**native_dir, "DIGITS": str(digits)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_platform_is_chosen_and_a_failing_test_prints_no_variable_of_the_user(
    tmp_path: Path, native_dir: dict[str, str]
) -> None:
    variables = {**native_dir, "MY_TOKEN": "a-secret"}
    done = _pytest(tmp_path, PLATFORM + FAILING, variables, "--softnpu-platform", "3720", "--showlocals")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "SoftnpuDevice(socket=" in done.stdout
    assert "a-secret" not in done.stdout + done.stderr


def test_every_worker_has_a_daemon_of_its_own(tmp_path: Path, native_dir: dict[str, str]) -> None:
    seen = tmp_path / "seen"
    done = _pytest(tmp_path, WHO, {**native_dir, "SEEN": str(seen)}, "-p", "xdist.plugin", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = {tuple(line.split()) for line in seen.read_text().splitlines()}
    assert len(pairs) == len({worker for worker, _ in pairs}) == len({place for _, place in pairs}) == 2
    assert not any(Path(place).exists() for _, place in pairs)


@pytest.mark.parametrize("wrong", ["library", "platform"])
def test_without_a_device_every_test_has_one_line_that_says_why(
    tmp_path: Path, native_dir: dict[str, str], wrong: str
) -> None:
    tests = "def test_it(softnpu_device): pass\ndef test_that(softnpu_device): pass\n"
    options = ("--softnpu-platform", "9999") if wrong == "platform" else ()
    variables = native_dir if wrong == "platform" else {"SOFTNPU_NATIVE_DIR": str(tmp_path)}
    done = _pytest(tmp_path, tests, variables, *options)
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if line.startswith("softnpu_device: ")]
    assert len(said) == 2, done.stdout
    assert all(("'9999'; expected 3720" if wrong == "platform" else "nstall g++") in line for line in said)
    assert "Traceback" not in done.stdout


def test_who_does_not_use_it_pays_nothing() -> None:
    program = (
        "import softnpu.tools.pytest_plugin, sys; "
        "heavy = {'openvino', 'numpy', 'msgspec', 'typer'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
