"""Threads cancelled (`pthread_cancel`) during a call, and allocations that fail in one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from softnpu.driver.native_library import NativeLibrary
from tests.conftest import StartDaemon
from tests.native.building import compile_program
from tests.native.conftest import RunProgram
from tests.support.waiting import wait_until


def test_cancelling_a_thread_that_awaits_an_answer_keeps_the_session_intact(
    start_daemon: StartDaemon, native: NativeLibrary, surroundings: dict[str, str], tmp_path: Path
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    path = compile_program("cancelled", native, tmp_path)
    program = subprocess.Popen(
        [path, "queue"], env=surroundings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "stop\n"
        os.kill(daemon.pid, signal.SIGSTOP)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "cancelled\n"
        assert program.stdout.readline() == "go on\n"
        os.kill(daemon.pid, signal.SIGCONT)
        said, _ = program.communicate("\n", timeout=25)  # nobody waits 30 s for an answer that has arrived
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
        program.kill()
        program.wait()
    assert said == "done\n"
    assert program.returncode == 0
    wait_until(lambda: daemon.memory_used() == 0, what="the release of the program's memory")


def test_cancelling_a_thread_that_awaits_the_device_keeps_the_fence_intact(
    start_daemon: StartDaemon, program: RunProgram
) -> None:
    start_daemon(tdr_ms=60000)
    assert program("cancelled", "fence").splitlines() == ["cancelled", "done"]


def test_a_failed_allocation_in_a_call_is_reported_without_a_hang(
    start_daemon: StartDaemon, program: RunProgram
) -> None:
    start_daemon()
    assert program("no_memory") == "many calls failed\n"
