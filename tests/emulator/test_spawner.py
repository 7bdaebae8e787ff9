"""Processes are started by a thread that has none of the supervisor's descriptors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from softnpu.emulator.supervisor.children import child_process, spawner
from softnpu.emulator.supervisor.children.child_process import ChildProcess, ChildProgram
from softnpu.emulator.supervisor.children.spawner import Spawned, Spawner
from tests.support.waiting import wait_gone, wait_until


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[int]:
    with open(tmp_path / "kept", "w") as file:
        yield file.fileno()


@pytest.fixture
def starter(kept: int) -> Iterator[Spawner]:
    one = Spawner((kept,))
    yield one
    one.close()


def _start(*command: str) -> Spawned:
    reader, writer = os.pipe()
    try:
        return Spawned(subprocess.Popen(command, stdout=writer), [reader])
    finally:
        os.close(writer)


def test_it_has_no_descriptor_but_those_that_it_keeps(starter: Spawner, kept: int) -> None:
    folder = f"/proc/self/task/{starter._thread.native_id}/fd"
    reader, writer = os.pipe()
    mine = {os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if int(fd) > 2}
    assert len(mine) == 2
    assert os.readlink(f"/proc/self/fd/{kept}") in mine
    for fd in (reader, writer):
        os.close(fd)


def test_a_process_and_its_descriptors_are_handed_over(starter: Spawner) -> None:
    for _ in range(3):
        process, fds = starter.start(partial(_start, "echo", "hello"))
        with process, os.fdopen(fds[0]) as output:
            assert output.read() == "hello\n"


def test_what_cannot_be_started_is_an_error_and_the_next_one_is_started(starter: Spawner) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        starter.start(partial(_start, "/nowhere/to/be/found"))
    test_a_process_and_its_descriptors_are_handed_over(starter)


def test_it_begins_with_what_was_forked_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later thread would inherit what clients have sent until then."""
    spawners: list[Spawner] = []
    forked = cast("ChildProcess", object())
    monkeypatch.setattr(child_process, "_spawners", spawners)
    monkeypatch.setattr(child_process, "_early", {ChildProgram.ENGINE: forked})
    assert child_process.take(ChildProgram.ENGINE) is forked
    (one,) = spawners
    one.close()


def test_what_is_started_too_late_is_ended(starter: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def late() -> Spawned:
        wait_until(lambda: starter._is_late)
        started = _start("sleep", "600")
        pids.append(started.process.pid)
        return started

    with monkeypatch.context() as patched:
        patched.setattr(spawner, "_STARTED_S", 0.05)
        with pytest.raises(TimeoutError, match="has not started"):
            starter.start(late)
    assert not starter.serves
    wait_until(lambda: bool(pids))
    wait_gone(pids[0])


def test_signals_are_for_other_threads_and_for_what_it_starts(starter: Spawner) -> None:
    """It has no descriptor that a signal's handler could wake the daemon with."""
    status = Path(f"/proc/self/task/{starter._thread.native_id}/status").read_text()
    blocked = int(re.search(r"^SigBlk:\s*([0-9a-f]+)", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    assert blocked >> (signal.SIGTERM - 1) & 1
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
