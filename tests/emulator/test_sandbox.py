"""Engines and compiler workers are sandboxed: a model that takes one over can do next to nothing there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.driver import faults
from softnpu.emulator.sandbox import landlock
from tests.conftest import OpenContext, StartDaemon
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_until
from tests.support.work import Loaded, same

_SOURCE = Path(__file__).with_name("foreign_code.c")
_ATTEMPTS = 45


@pytest.fixture
def place(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory readable by sandboxed processes, with the library; beside it a secret."""
    place = private_dir / "extensions"
    place.mkdir(0o700)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(place))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "foreign.so", _SOURCE], check=True)
    (place / "victim").write_text("whole")
    (private_dir / "secret").write_text("secret")
    return place


@pytest.mark.parametrize(
    ("point", "other"),
    [("engine.load", "engine"), ("compiler.completing", "daemon"), ("compiler.completing", "worker")],
)
def test_foreign_code_reaches_nothing(
    start_daemon: StartDaemon, open_context: OpenContext, place: Path, digits: Path, point: str, other: str
) -> None:
    rule = f"{point}=load({place}/foreign.so):1:{int(other == 'worker')}"
    daemon = start_daemon(devices=("4000", "4000"), failpoints=rule)
    context = open_context(daemon)
    if other == "worker":  # the process that forked the library's
        Loaded(context, digits)
        (target,) = daemon.status().compiler_pids
    else:
        target = daemon.pid if other == "daemon" else daemon.status().engines[1].engine_pid
    (place / "target").write_text(str(target))
    Loaded(context, digits)
    wait_until(lambda: "foreign code: the end" in daemon.log, what="the end of the library")
    told = [line for line in daemon.log.splitlines() if "foreign code: " in line]
    assert len(told) >= _ATTEMPTS
    assert [line for line in told if "refused" not in line] == []
    assert (place / "victim").read_text() == "whole"
    assert "not sandboxed" not in daemon.log


_CUTS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void cut(void) {
    for (int fd = 3; fd < 256; ++fd) {
        if (ftruncate(fd, 0)) continue;
        for (int seal = 1; seal < 64; seal *= 2) fcntl(fd, F_ADD_SEALS, seal);
    }
    _exit(1);
}
"""


def test_an_engine_that_cuts_and_seals_all_its_files_costs_itself(
    start_daemon: StartDaemon, open_context: OpenContext, place: Path, digits: Path
) -> None:
    (place / "cuts.c").write_text(_CUTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "cuts.so", place / "cuts.c"], check=True)
    daemon = start_daemon(failpoints=f"engine.load=load({place}/cuts.so)")
    faults.inject("fail", after=1000, socket=daemon.socket)  # its counters are shared too
    context = open_context(daemon)
    loaded = Loaded(context, digits)
    assert same(loaded.infer(context.create_command_queue(), image()), on_cpu(digits, image()))
    assert daemon.engine().restarts == 1
    assert "internal error" not in daemon.log


@pytest.mark.parametrize("wrapper", [[], ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]])
def test_a_process_tells_what_it_can_do(wrapper: list[str]) -> None:
    """With or without the capabilities of root: containers are started with `--cap-drop ALL`."""
    if os.geteuid():
        wrapper = []  # who is not root has none
    command = [*wrapper, sys.executable, "-P", "-m", "softnpu.emulator.sandbox.probe"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"missing": [], "possible": []}
    assert landlock.version() > 0
