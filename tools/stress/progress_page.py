"""One page of shared memory on which every client notes its activity, without locks.

A client writes only its own row. A row outlives the process: the next process of this client continues
counting, and the coordinator can tell where a dead or hanging one was.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.emulator.common import linux
from softnpu.tools.stress.plan import OPERATIONS


class Field(enum.IntEnum):
    """The words of a row."""

    PID = 0
    INCARNATION = 1
    STEP = 2
    OPERATION = 3
    SINCE_NS = 4
    SESSION = 5
    DYING = 6
    CHECKED = 7
    EXCUSED = 8
    # this client's shared memory; GENERATION is 0 while it changes
    GENERATION = 9
    SHARED_FD = 10
    SHARED_WORKLOAD = 11
    SHARED_SAMPLE = 12
    # its last injected fault, by its index in `plan.FAULTS`, and when; 0 if none
    FAULT = 13
    FAULT_NS = 14
    # successes of each operation
    DONE = 15


class Control(enum.IntEnum):
    """The words of the row that the coordinator writes."""

    STOP = 0
    COMPILER_KILLS = 1


_WIDTH: Final = Field.DONE + len(OPERATIONS)
_WORD: Final = 8
IDLE: Final = -1
"""OPERATION of a client between two steps."""


class ProgressPage:
    """All rows: `control` is the coordinator's, `rows[client]` a client's."""

    def __init__(self, fd: int, clients: int) -> None:
        self._map = linux.map_shared(fd, size_of(clients))
        words: npt.NDArray[np.int64] = np.frombuffer(self._map, np.int64)
        self.all = words.reshape(clients + 1, _WIDTH)
        self.control: npt.NDArray[np.int64] = self.all[0]
        self.rows: npt.NDArray[np.int64] = self.all[1:]

    def row(self, client: int) -> Any:
        """Return a client's row, as a view."""
        return self.rows[client]

    def total(self, field: Field) -> int:
        """Return the sum over all clients."""
        return int(self.rows[:, field].sum())

    def any_at(self, operations: tuple[str, ...]) -> bool:
        """Return whether any client is at one of these operations."""
        numbers = [OPERATIONS.index(name) for name in operations]
        return bool(np.isin(self.rows[:, Field.OPERATION], numbers).any())

    def done(self) -> dict[str, int]:
        """Return the successes of each operation, over all clients."""
        sums = self.rows[:, Field.DONE :].sum(axis=0)
        return {name: int(count) for name, count in zip(OPERATIONS, sums, strict=True)}


def size_of(clients: int) -> int:
    """Return the size in bytes."""
    return (clients + 1) * _WIDTH * _WORD


def create(clients: int) -> tuple[int, ProgressPage]:
    """Create a page; return its descriptor and the page."""
    fd = linux.memfd("stress-progress", size_of(clients))
    progress = ProgressPage(fd, clients)
    progress.rows[:, Field.OPERATION] = IDLE
    return fd, progress
