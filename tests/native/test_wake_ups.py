"""What ends a wait at once, where its sleep never ends by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.conftest import StartDaemon
from tests.native.building import compile_program
from tests.native.conftest import RunProgram
from tests.support.waiting import DEADLINE_S

_LOST, _DESTROYED = "0x70000001", "0x78000005"


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_every_waiter_learns_of_the_death_of_the_daemon(
    start_daemon: StartDaemon,
    native: NativeLibrary,
    surroundings: dict[str, str],
    tmp_path: Path,
    kernel: str,
) -> None:
    """With an older kernel by its short slices."""
    daemon = start_daemon(tdr_ms=60_000)
    path = compile_program("waiters", native, tmp_path, "-rdynamic", "-ldl")
    with subprocess.Popen(
        [path, "daemon", kernel], env=surroundings, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "kill\n"
            daemon.kill()
            said, _ = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert said.split() == [_LOST] * 4


def test_every_waiter_learns_of_the_end_of_its_queue(start_daemon: StartDaemon, program: RunProgram) -> None:
    start_daemon(tdr_ms=60_000)
    assert program("waiters", "queue", "new").split() == [_DESTROYED] * 4


def test_nobody_sleeps_whose_submission_has_ended(start_daemon: StartDaemon, program: RunProgram) -> None:
    """Another thread has armed the fence again between the look at it and the sleep."""
    start_daemon(tdr_ms=60_000)
    assert program("waiters", "rearmed", "new") == "0\n"
