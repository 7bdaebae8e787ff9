"""Interleaved rounds: every side runs a little, in turn, many times, so that all face the same noise.

A figure is the median over the rounds of one side; a verdict compares two medians of the same run.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
Round = Callable[[], float]
"""One turn of one side; returns its figure, in seconds."""

# A spinning engine goes to sleep within this time.
REST_S = 0.002
# OpenVINO's threads in this process look for work for up to 50 ms after an inference.
REST_AFTER_OPENVINO_S = 0.1


def interleave(sides: Mapping[S, Round], rounds: int, rest_s: float = REST_S) -> dict[S, list[float]]:
    """Run every side once a round; return the figures of all rounds by side.

    The order rotates from round to round, so no side always follows the same neighbour.
    """
    times: dict[S, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(rest_s)
            times[name].append(sides[name]())
    return times


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin this thread to `core`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def median_time(step: Callable[[], None], count: int) -> float:
    """Return median seconds of `step` over `count` runs: interrupted runs are outliers."""
    clock = time.perf_counter
    times = []
    for _ in range(count):
        start = clock()
        step()
        times.append(clock() - start)
    return median(times)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` per cent of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def split(total: int, size: int, least: int = 3) -> tuple[int, int]:
    """Return the number of rounds and of steps in each, for about `total` steps in all, `size` in each."""
    rounds = max(least, round(total / size))
    return rounds, max(1, round(total / rounds))
