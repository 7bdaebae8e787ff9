"""The daemon's usage, second by second: memory, descriptors, threads, processes, sessions."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec
import psutil

from softnpu.emulator.interface.messages import StatusAnswer
from softnpu.tools.shared.private_daemon import process_tree

_ANONYMOUS: Final = re.compile(rb"^Anonymous:\s+(\d+) kB$", re.MULTILINE)
_WARM_S: Final = 4.0
_WARM_OPERATIONS: Final = 9000
"""Operations of 48 clients in their first minute on a quiet machine with two cores."""
_PER_CHILD: Final = 3
"""Descriptors of the supervisor for each of its children: a socket, a pidfd and the pipe of its output."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon `at` seconds after the start, when clients had done `operations`. Memory in bytes.

    `supervisor` and `engine` are these processes' allocations; memory shared with clients is counted as
    `device_memory`. `orphaned` is device memory of sessions that have ended.
    """

    at: float
    operations: int
    supervisor: int
    engine: int
    descriptors: int
    engine_descriptors: int
    threads: int
    children: int
    sessions: int
    device_memory: int
    orphaned: int
    restarts: int

    @property
    def daemon(self) -> int:
        """Memory of supervisor and engines."""
        return self.supervisor + self.engine


def orphaned(status: StatusAnswer) -> int:
    """Return device memory that belongs to no session any more and is not yet reclaimed.

    The daemon's answer is one thread's snapshot, so both sums are consistent.
    """
    used = sum(engine.memory_used for engine in status.engines)
    return used - sum(session.memory_used for session in status.sessions)


def measure(status: StatusAnswer, at: float, operations: int) -> Sample | None:
    """Measure the daemon now; return None while an engine is being replaced."""
    try:
        engines = [engine.engine_pid for engine in status.engines]
        if not all(engines):
            return None
        children = len(process_tree(status.pid)) - 1
        return Sample(
            at=at,
            operations=operations,
            supervisor=own_memory(status.pid),
            engine=sum(own_memory(pid) for pid in engines),
            descriptors=_descriptors(status.pid) - _PER_CHILD * len(psutil.Process(status.pid).children()),
            engine_descriptors=sum(_descriptors(pid) for pid in engines),
            threads=psutil.Process(status.pid).num_threads(),
            children=children,
            sessions=status.session_count,
            device_memory=sum(engine.memory_used for engine in status.engines),
            orphaned=orphaned(status),
            restarts=sum(engine.restarts for engine in status.engines),
        )
    except (OSError, psutil.Error):
        return None  # an engine has just ended


def own_memory(pid: int) -> int:
    """Return bytes allocated by a process. Raise `OSError`.

    File pages do not count: its share of a library falls when another program maps the same one. Pages that
    it has in common with a process forked from it count wholly, in both: a share grows when the other ends.
    """
    with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        match = _ANONYMOUS.search(file.read())
    if match is None:
        raise ProcessLookupError(pid)  # a zombie has no memory
    return 1024 * int(match[1])


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _warm(samples: Sequence[Sample]) -> list[Sample]:
    """Drop samples of a new engine that still loads its predecessor's models."""
    counts, restarts, since = [], -1, 0.0
    for sample in samples:
        if sample.restarts != restarts:
            restarts, since = sample.restarts, sample.at
        if sample.at - since >= _WARM_S:
            counts.append(sample)
    return counts


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory growth: medians of the window after the settling time, and of the last window."""

    what: str
    early: int
    late: int

    @property
    def share(self) -> float:
        """Growth as a fraction: 0.05 is five per cent."""
        return self.late / self.early - 1 if self.early else 0.0


def growths(samples: Sequence[Sample], seconds: float) -> list[Growth]:
    """Return the growth of the supervisor and of the whole daemon after the first minute.

    A starved machine does a minute's work later: counting starts then, at the latest halfway through the run;
    so does a run of less than three minutes. Windows are a third of the rest.
    """
    half = seconds / 2
    worked = next((sample.at for sample in samples if sample.operations >= _WARM_OPERATIONS), half)
    settled = min(half, max(60.0, worked)) if seconds >= 180.0 else half
    after = [sample for sample in _warm(samples) if sample.at >= settled]
    if len(after) < 4:
        return []
    part = max(2, len(after) // 3)
    growths = []
    for what in ("supervisor", "daemon"):
        values = [int(getattr(sample, what)) for sample in after]
        growths.append(
            Growth(
                what=what,
                early=int(statistics.median(values[:part])),
                late=int(statistics.median(values[-part:])),
            )
        )
    return growths
