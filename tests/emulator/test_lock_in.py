"""Engines and compiler workers are locked in: a model that takes one over can do next to nothing there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.emulator.arithmetic import library
from softnpu.emulator.common import landlock
from tests.conftest import OpenContext, StartDaemon
from tests.support.waiting import wait_until
from tests.support.work import Loaded

_SOURCE = Path(__file__).with_name("foreign_code.c")
_ATTEMPTS = 20


@pytest.fixture
def place(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that processes which are locked in can read, with the library; beside it a secret."""
    place = private_dir / "extensions"
    place.mkdir(0o700)
    monkeypatch.setenv(library.DIRECTORY, str(place))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "foreign.so", _SOURCE], check=True)
    (place / "victim").write_text("whole")
    (private_dir / "secret").write_text("secret")
    return place


@pytest.mark.parametrize("point", ["engine.load", "compiler.completing"])
def test_foreign_code_reaches_nothing(
    start_daemon: StartDaemon, open_context: OpenContext, place: Path, digits: Path, point: str
) -> None:
    daemon = start_daemon(devices=("4000", "4000"), failpoints=f"{point}=load({place}/foreign.so)")
    other = daemon.status().engines[1].engine_pid if point == "engine.load" else daemon.pid
    (place / "target").write_text(str(other))
    Loaded(open_context(daemon), digits)
    wait_until(lambda: "foreign code: the end" in daemon.log, what="the end of the library")
    told = [line for line in daemon.log.splitlines() if "foreign code: " in line]
    assert len(told) >= _ATTEMPTS
    assert [line for line in told if "refused" not in line] == []
    assert (place / "victim").read_text() == "whole"
    assert "not locked in" not in daemon.log


def test_a_process_tells_what_it_can_do() -> None:
    command = [sys.executable, "-P", "-m", "softnpu.emulator.common.lock_in_probe"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"missing": [], "possible": []}
    assert landlock.version() > 0
