"""The conformance suite on the native driver: a part of it in every run.

pytest tests/conformance/behaviour --driver=native    all of them
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from softnpu.driver.native_library import NativeLibrary
from tests.conformance.conftest import PLATFORMS
from tests.conformance.rig import SECOND, TDR
from tests.conftest import StartDaemon

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
MODULES = (
    "identity",
    "arguments",
    "errors",
    "fences",
    "events",
    "graph_arguments",
    "dynamic_shapes",
    "execution",
    "foreign_memory",
    "leases",
    "failed_device",
    "metrics",
    "commands",
)


def test_native_driver_conforms_to_the_suite(native: NativeLibrary, start_daemon: StartDaemon) -> None:
    assert native.loader.exists()
    daemon = start_daemon(devices=PLATFORMS, tdr_ms=TDR * 1000 // SECOND)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    options = ["--driver=native", f"--daemon={daemon.socket}"]
    done = subprocess.run(
        [*command, *options, *(f"tests/conformance/behaviour/test_{name}.py" for name in MODULES)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
