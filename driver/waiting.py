"""Waiting for the device: look, spin for a bounded time, then sleep in slices.

A slice bounds how late a waiter learns that the daemon is gone; nothing wakes it otherwise then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from softnpu.driver.connection import Connection
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.interface.environment import spin_us

FOREVER = 2**64 - 1
"""Time-out in nanoseconds that means no time-out, as `UINT64_MAX` in Level Zero."""
_SLICE_NS = 50_000_000


def new_budget() -> SpinBudget:
    """The spin budget of one queue, as `SOFTNPU_SPIN_US` bounds it."""
    return SpinBudget(spin_us() * 1000)


def wait(
    call: str,
    ready: Callable[[], bool],
    sleep: Callable[[int], None],
    timeout_ns: int,
    connection: Connection,
    spin: SpinBudget,
) -> bool:
    """Waits until `ready()`; False when `timeout_ns` passed. `sleep(ns)` returns when it may have changed.

    Raises `ZeError` with ERROR_DEVICE_LOST when the daemon is gone, within one slice (50 ms).
    """
    if ready():
        return True
    if timeout_ns <= 0:
        if connection.is_lost():
            raise connection.lost_error(call)
        return False
    now = time.monotonic_ns()
    end = now + timeout_ns
    limit = spin.limit_ns()
    if limit:
        spin_end = min(end, now + limit)
        while time.monotonic_ns() < spin_end:
            if ready():
                spin.hit()
                return True
        spin.miss()
    if failpoints.active is not None:
        failpoints.hit("client.running")
    while not ready():
        left = end - time.monotonic_ns()
        if left <= 0:
            return False
        sleep(min(left, _SLICE_NS))
        if not ready() and connection.is_lost() and not ready():
            raise connection.lost_error(call)
    return True
