"""A process is known by pid, start time and boot, whatever it calls itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from softnpu.emulator.common import process_identity
from softnpu.emulator.common.process_identity import ProcessIdentity
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.quick


def test_a_process_runs_until_it_has_ended_whatever_its_name(tmp_path: Path) -> None:
    cat = shutil.which("cat")
    assert cat is not None
    odd = tmp_path / "a) R 1 2 (b"
    odd.symlink_to(cat)
    child = subprocess.Popen([odd], stdin=subprocess.PIPE)
    try:
        identity, own = ProcessIdentity.of(child.pid), ProcessIdentity.current()
        ticks_since_boot = float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")
        assert 0 < own.start_time <= identity.start_time <= ticks_since_boot + 1
        assert (identity.is_running(), identity.has_ended()) == (True, False)
    finally:
        child.kill()
        child.communicate(timeout=DEADLINE_S)
    assert (identity.is_running(), identity.has_ended()) == (False, True)
    with pytest.raises(FileNotFoundError):
        ProcessIdentity.of(child.pid)


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another boot"}])
def test_a_pid_that_is_used_again_is_another_process(change: dict[str, Any]) -> None:
    former = ProcessIdentity.current()._replace(**change)
    assert (former.is_running(), former.has_ended()) == (False, True)


def test_nothing_is_proven_about_a_process_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_time(_pid: int) -> int:
        raise PermissionError

    own = ProcessIdentity.current()
    monkeypatch.setattr(process_identity, "start_time", start_time)
    assert (own.is_running(), own.has_ended()) == (False, False)


def test_the_boot_id_is_the_kernels() -> None:
    assert process_identity.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
