"""A process that works for another may end: what it used is neither forgotten nor held against the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from softnpu.emulator.supervisor.children.activity import Activity, StallWatch
from softnpu.emulator.supervisor.reactor import Reactor
from tests.support.waiting import wait_stopped, wait_until

pytestmark = pytest.mark.quick

_BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"


@pytest.fixture
def helper() -> Iterator[subprocess.Popen[str]]:
    """A process that has used 0.2 s of CPU time."""
    burn = [sys.executable, "-c", _BURN]
    with subprocess.Popen(burn, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_a_process_that_was_stopped_while_it_ran_waits_for_no_file() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as runs:
        try:
            wait_until(lambda: Activity(runs.pid).cpu_ns() > 200_000_000)  # it has started
            runs.send_signal(signal.SIGSTOP)
            wait_stopped(runs.pid)
            assert Activity(runs.pid).file_waits(runs.pid) == {}
        finally:
            runs.kill()


def test_what_an_ended_process_used_still_counts(helper: subprocess.Popen[str]) -> None:
    activity = Activity(helper.pid)
    used_ns = activity.cpu_ns()
    assert used_ns >= 200_000_000
    _end(helper)
    assert activity.cpu_ns() == used_ns


def test_progress_after_the_end_of_a_helper_is_seen_and_its_time_counts_for_the_limit(
    helper: subprocess.Popen[str],
) -> None:
    reactor, told = Reactor(), list[str]()
    watch = StallWatch(
        reactor, os.getpid(), 8.0, 0.2, lambda _: told.append("stall"), lambda: told.append("over")
    )
    watch.begin()
    watch._passing = Activity(helper.pid)
    watch._cpu_ns = watch._used_ns()
    _end(helper)
    watch._quiet_s, used = 5.0, time.process_time()
    while time.process_time() - used < 0.01:
        continue
    watch._tick()
    assert watch._quiet_s == 0.0, "10 ms of CPU time are progress"
    assert told == ["over"]
    reactor.close()
