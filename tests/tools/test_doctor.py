"""`softnpu doctor`: every check has a finding, and a failing one does not hide the others."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnpu.tools import doctor
from tests.support.cli import Finished, softnpu
from tests.support.daemon import Daemon

CHECKS = {
    "versions",
    "machine",
    "processor",
    "limits",
    "shared memory",
    "permissions",
    "compiled models",
    "daemon",
    "walls",
    "native driver",
    "native parts",
    "device",
    "OpenVINO",
    "compiler",
    "f16",
}


def _findings(done: Finished) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(done.out)["findings"]}


def _only(check: Callable[[Path], Iterator[doctor.Finding]], place: Path = Path("/none")) -> doctor.Finding:
    (finding,) = doctor._run_check(check, place)
    return finding


def test_a_healthy_machine_and_the_running_daemon_are_reported(
    daemon: Daemon, native_dir: dict[str, str]
) -> None:
    findings = _findings(softnpu("doctor", "--json", **native_dir))
    assert findings.keys() == CHECKS
    worth_a_warning = {"machine", "limits", "walls"}  # one core, few descriptors, an old kernel
    assert {check for check, found in findings.items() if found["state"] == "ok"} >= CHECKS - worth_a_warning
    assert f"pid {daemon.pid}" in findings["daemon"]["found"]
    assert "4000 ready" in findings["daemon"]["found"]
    assert "NPU" in findings["OpenVINO"]["found"]


def test_without_library_and_home_the_next_steps_are_reported_and_the_rest_is_checked(tmp_path: Path) -> None:
    # a user without an entry in /etc/passwd, who may read what root may
    script = f'ulimit -n 256; exec "{sys.executable}" -P -m softnpu.tools.cli doctor --json'
    done = subprocess.run(
        ["unshare", "-U", "--map-user=12345", "sh", "-c", script],
        env={**os.environ, "SOFTNPU_NATIVE_DIR": str(tmp_path), "CI": "", "HOME": ""},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr}")
    assert done.returncode == 1, done.stderr
    findings = _findings(Finished(done.returncode, done.stdout, done.stderr))
    assert findings.keys() == CHECKS - {"OpenVINO", "compiler"} | {"home"}
    assert [check for check, found in findings.items() if found["state"] == "failed"] == ["native driver"]
    assert "g++" in findings["native driver"]["next_step"]
    assert findings["native parts"]["found"].count(str(tmp_path)) == 3
    assert "set HOME" in findings["home"]["next_step"]
    assert findings["limits"]["state"] == "warning"


@pytest.mark.parametrize(("hard", "state"), [(20, "failed"), (256, "warning"), (1 << 20, "ok")])
def test_a_limit_fails_only_below_the_minimum(monkeypatch: pytest.MonkeyPatch, hard: int, state: str) -> None:
    endless = resource.RLIM_INFINITY
    limits = {resource.RLIMIT_NOFILE: (hard, hard), resource.RLIMIT_AS: (endless, endless)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert _only(doctor._limits).state == state


@pytest.mark.parametrize(
    ("variable", "text", "state"),
    [
        ("SOFTNPU_AUTOSTART", "0", "warning"),
        ("SOFTNPU_IDLE_S", "soon", "failed"),
        ("SOFTNPU_DEVICES", "1234", "failed"),
    ],
)
def test_an_environment_in_which_no_daemon_starts_is_reported(
    monkeypatch: pytest.MonkeyPatch, private_dir: Path, variable: str, text: str, state: str
) -> None:
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "1")
    monkeypatch.setenv(variable, text)
    found = _only(doctor._daemon, private_dir / "npu.sock")
    assert found.state == state
    assert text in found.found


def test_a_missing_directory_and_a_crashing_check_are_reported(tmp_path: Path) -> None:
    findings = list(doctor._run_check(doctor._permissions, tmp_path / "none" / "npu.sock"))
    assert findings[0].state == "failed"

    def crashes(_: Path) -> Iterator[doctor.Finding]:
        raise RuntimeError("Could not determine home directory.")
        yield

    found = _only(crashes)
    assert (found.state, found.found) == ("failed", "RuntimeError: Could not determine home directory.")
