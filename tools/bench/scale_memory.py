"""`bench scale`: commands in a list, and allocations of a session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from softnpu.driver import Allocation
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.tools.bench.lists import Fills
from softnpu.tools.bench.memory import total
from softnpu.tools.bench.rounds import median
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.shared.private_daemon import private_session

_COMMANDS: Final = 20_000
_MOST_ROUNDS: Final = 30
_LEAST_ROUNDS: Final = 5
_ALLOCATION: Final = 4096
_MEASURABLE: Final = 1000
"""Fewer Python objects disappear in the allocator's reserve."""


def measure_commands(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost per command of recording, first and further execution, by list length."""
    with private_session() as driver:
        for size in sizes:
            fills = Fills(driver, size)
            rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, _COMMANDS // size))
            times: dict[str, list[float]] = {"recorded": [], "first execution": [], "executed again": []}
            for _ in range(rounds):
                times["recorded"].append(fills.record())
                times["first execution"].append(fills.execute())
                times["executed again"].append(fills.execute())
            for cost, seconds in times.items():
                yield Point(cost, size, median(seconds) / size * 1e6, "us")
            fills.close()


def measure_allocations(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of one more allocation and free at each count, and its memory in all processes.

    Each size continues from the previous one: the cost is that of the last allocations.
    """
    limits = ResourceLimits(session_allocations=2 * max(sizes))
    with private_session(limits=limits) as driver:
        context = driver.devices[0].create_context()
        context.free(context.alloc_host(_ALLOCATION))
        pids = [os.getpid()]
        held: list[Allocation] = []
        freed: list[Point] = []
        before = total(driver.daemon_pid, pids)
        for size in sizes:
            new = size - len(held)
            begin = time.perf_counter()
            held.extend(context.alloc_host(_ALLOCATION) for _ in range(new))
            yield Point("allocated", size, (time.perf_counter() - begin) / new * 1e6, "us")
            if size >= _MEASURABLE:
                grown = total(driver.daemon_pid, pids) - before
                yield Point("memory beside their bytes", size, grown / size / 1024, "KiB")
        for size, left in zip(reversed(sizes), [*reversed(sizes[:-1]), 0], strict=True):
            begin = time.perf_counter()
            while len(held) > left:
                context.free(held.pop())
            freed.append(Point("freed", size, (time.perf_counter() - begin) / (size - left) * 1e6, "us"))
        yield from reversed(freed)
