"""`softnpu doctor`: every check has a finding, and one that fails does not hide the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Finished, softnpu
from tests.support.daemon import Daemon

CHECKS = {
    "versions",
    "machine",
    "limits",
    "shared memory",
    "permissions",
    "compiled models",
    "daemon",
    "native driver",
    "device",
    "OpenVINO",
}


def _states(done: Finished) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in json.loads(done.out)}


def test_a_machine_in_order(native_dir: dict[str, str]) -> None:
    done = softnpu("doctor", **{**native_dir, "SOFTNPU_AUTOSTART": "1"})
    lines = done.words.splitlines()
    assert {line.split(":")[0].removeprefix("ok ") for line in lines if line.startswith("ok")} >= CHECKS - {
        "machine",  # one core is worth a warning
        "limits",
    }
    assert "NPU" in lines[-1]


def test_the_running_daemon_is_told(daemon: Daemon, native_dir: dict[str, str]) -> None:
    findings = json.loads(softnpu("doctor", "--json", **native_dir).words)
    (found,) = [finding["found"] for finding in findings if finding["check"] == "daemon"]
    assert f"pid {daemon.pid}" in found
    assert "4000 ready" in found


def test_without_the_library_the_next_step_is_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    done = softnpu("doctor", "--json", SOFTNPU_NATIVE_DIR=str(tmp_path))
    assert done.code == 1
    states = _states(done)
    assert states.keys() == CHECKS - {"OpenVINO"}
    assert [check for check, state in states.items() if state == "failed"] == ["native driver"]
    assert "g++" in done.out


def test_a_low_limit_is_found(native_dir: dict[str, str]) -> None:
    script = f'ulimit -n 512; exec "{sys.executable}" -P -m softnpu.tools.cli doctor --json'
    done = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, **native_dir},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert _states(Finished(done.returncode, done.stdout, done.stderr))["limits"] == "failed"


@pytest.mark.parametrize(
    ("variable", "text", "state"),
    [
        ("SOFTNPU_AUTOSTART", "0", "warning"),
        ("SOFTNPU_IDLE_S", "soon", "failed"),
        ("SOFTNPU_DEVICES", "1234", "failed"),
    ],
)
def test_an_environment_in_which_no_daemon_starts_is_told(
    native_dir: dict[str, str], variable: str, text: str, state: str
) -> None:
    done = softnpu("doctor", "--json", **{**native_dir, "SOFTNPU_AUTOSTART": "1", variable: text})
    (found,) = [finding for finding in json.loads(done.out) if finding["check"] == "daemon"]
    assert found["state"] == state
    assert text in found["found"]


def test_a_directory_that_is_not_there_is_told(native_dir: dict[str, str], tmp_path: Path) -> None:
    done = softnpu("doctor", "--json", "--socket", tmp_path / "none" / "npu.sock", **native_dir)
    assert done.code == 1
    assert _states(done)["permissions"] == "failed"
