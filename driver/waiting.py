"""Waiting for the device: poll for a bounded time, then sleep in slices.

The length of a slice bounds how late a waiter learns of what nothing wakes it for. A sleep in C++ also ends
at once when the session has ended (`Connection.life`), or anything in this process (`endings`): its slices
are long. Others are short, because a killed daemon does not end them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from softnpu.driver import endings
from softnpu.driver.connection import Connection
from softnpu.driver.errors import check_type
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.interface.environment import spin_us

FOREVER = 2**64 - 1
"""Time-out in nanoseconds that means no time-out, as `UINT64_MAX` in Level Zero."""
_SLICE_NS = 50_000_000
_POLL_NS = 100_000
"""The longest time in a poll: only between two of them Python changes threads, and handles signals."""


def new_budget() -> SpinBudget:
    """Return the spin budget of one queue, bounded by `SOFTNPU_SPIN_US`."""
    return SpinBudget(spin_us() * 1000)


def wait(
    call: str,
    is_over: Callable[[], bool],
    sleep: Callable[[int], None],
    timeout_ns: int,
    connection: Connection,
    spin: SpinBudget,
    poll: Callable[[int], int] | None = None,
    doze: Callable[[float, int, int, int, int], None] | None = None,
) -> bool:
    """Wait until `is_over()`; return False after `timeout_ns`. `sleep(ns)` returns on possible changes.

    `poll(ns)` is `is_over()` that may take so long until it is true; 2: it is in vain to check now.
    `doze(ns, slice_ns, ended, socket, life)` sleeps instead, over many slices (`FencedExecution.doze`).

    Raises `ZeError` with ERROR_DEVICE_LOST when the daemon is gone, within one short slice (50 ms).
    """
    if type(timeout_ns) is not int:
        check_type(call, "time-out in nanoseconds", timeout_ns, int, float)
    limit = spin.limit_ns()
    # before a sleep it is checked anyway, but after a submission Python is often slower than the device
    if (limit or timeout_ns <= 0) and is_over():
        return True
    if timeout_ns <= 0:
        if connection.is_lost():
            raise connection.lost_error(call)
        return False
    now = time.monotonic_ns()
    end = now + timeout_ns
    if limit:
        spin_end = min(end, now + limit)
        while now < spin_end:
            polled = is_over() if poll is None else poll(int(min(spin_end - now, _POLL_NS)))
            if polled == 1:
                spin.hit()
                return True
            if polled:
                if spin.gives_way:
                    break
                os.sched_yield()
            now = time.monotonic_ns()
        else:
            spin.miss()
    if failpoints.active is not None:
        failpoints.hit("client.running")
    while True:
        ended = endings.COUNT.value
        if is_over():
            return True
        left = end - time.monotonic_ns()
        if left <= 0:
            return False
        if doze is None:
            sleep(int(min(left, _SLICE_NS)))
        else:
            doze(left, _SLICE_NS, ended, connection.socket, connection.life)
        if is_over():
            return True
        if connection.is_lost() and not is_over():
            raise connection.lost_error(call)
