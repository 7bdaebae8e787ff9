"""A failed device: its waiters learn of that, not of a daemon's end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[3]

_PROGRAM = """
import sys
from pathlib import Path
from tests.conformance.drivers import choose
from tests.conformance.rig import DEADLINE, Rig
rig = Rig(choose(sys.argv[1])(Path(sys.argv[2])))
queue = rig.queue()
fence, copy = rig.fence(queue), rig.copy_list(rig.host(8), rig.data(b"finished"), 8)
print("ready", flush=True)
sys.stdin.readline()
rig.submit(queue, copy, fence=fence)
print(rig.api.ze_fence_host_synchronize(fence, 6 * DEADLINE).name)
print(rig.api.ze_driver_get_last_error_description(rig.driver).get())
"""


def test_who_waits_is_told_of_the_device(request: pytest.FixtureRequest, private_dir: Path) -> None:
    socket = private_dir / "npu.sock"
    daemon = Daemon(DaemonSettings(socket=str(socket), failpoints="engine.handshake=abort:*:1"))
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(request.config.getoption("--driver", "python")), socket],
        cwd=ROOT,
        env={**os.environ, "SOFTNPU_LOG": "off", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        daemon.kill_engine()
        told, _ = program.communicate("\n", timeout=120)
    finally:
        program.kill()
        program.wait()
        daemon.close()
    result, reason = told.split("\n", 1)
    assert result == "ERROR_DEVICE_LOST"
    assert "engines end before they are ready" in reason
