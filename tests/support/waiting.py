"""Waits with a deadline: the only place where tests poll."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

DEADLINE_S = 30.0  # for a machine under load; a passing test does not wait this long
T = TypeVar("T")


def wait_until(predicate: Callable[[], T], deadline_s: float = DEADLINE_S, what: str = "") -> T:
    """Return the first true value of `predicate`; raise `AssertionError` at the deadline."""
    end = time.monotonic() + deadline_s
    pause = 0.0005
    while not (value := predicate()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what or predicate}"
        time.sleep(pause)  # there is no event to sleep on here
        pause = min(pause * 2, 0.02)
    return value


def wait_gone(pid: int, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a process has ended (a zombie counts as ended), by its pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert wait_readable(pidfd, deadline_s), f"process {pid} still lives after {deadline_s:g} s"
    finally:
        os.close(pidfd)


def wait_readable(fd: int, deadline_s: float = DEADLINE_S) -> bool:
    """Return whether a descriptor becomes readable, or its peer closes, within the deadline."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline_s) * 1000))


def waits_for_job(worker: int) -> bool:
    """Whether a compiler worker and its fork server sleep until a job comes."""
    try:
        fork_server = forked_by(worker)
        # poll and recvfrom, on x86-64 and on ARM64
        return fork_server > 0 and _call(worker) in {"7", "73"} and _call(fork_server) in {"45", "207"}
    except FileNotFoundError:
        return False


def forked_by(worker: int) -> int:
    """What a compiler worker has forked: its fork server. Of that: the process of a job. 0 if none lives."""
    for child in map(int, Path(f"/proc/{worker}/task/{worker}/children").read_text().split()):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
                return child
    return 0


def _call(pid: int) -> str:
    """Return the number of the system call that the first thread of a process is in."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0]


def wait_asleep(pid: int) -> None:
    """Wait until the only thread of a process sleeps."""
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, what=f"process {pid} asleep")


def wait_stopped(pid: int) -> None:
    """Wait until a process has stopped itself."""
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 60, f"process {pid} stopped")


class Stopwatch:
    """Seconds since creation."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
