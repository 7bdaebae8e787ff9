"""The progress board: one page of shared memory on which every client notes what it does, and nobody waits.

A client writes its own row and nobody else's; a row outlives the process, so that the next one in its place
goes on counting, and the director can say where a dead or silent one was.
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
    LIFE = 1
    STEP = 2
    OPERATION = 3
    SINCE_NS = 4
    SESSION = 5
    DYING = 6
    CHECKED = 7
    EXCUSED = 8
    # what this client shares with others; GENERATION is 0 while it changes
    GENERATION = 9
    SHARED_FD = 10
    SHARED_SUBJECT = 11
    SHARED_SAMPLE = 12
    # the fault that it has injected last, by its place in `plan.FAULTS`, and when; 0 if none
    FAULT = 13
    FAULT_NS = 14
    # how often each operation has ended well
    DONE = 15


class Control(enum.IntEnum):
    """The words of the row that the director writes."""

    STOP = 0
    COMPILER_KILLS = 1


_WIDTH: Final = Field.DONE + len(OPERATIONS)
_WORD: Final = 8
IDLE: Final = -1
"""OPERATION of a client between two steps."""


class ProgressPage:
    """All rows: `control` is the director's, `rows[client]` the one of a client."""

    def __init__(self, fd: int, clients: int) -> None:
        self._map = linux.map_shared(fd, size_of(clients))
        words: npt.NDArray[np.int64] = np.frombuffer(self._map, np.int64)
        self.all = words.reshape(clients + 1, _WIDTH)
        self.control: npt.NDArray[np.int64] = self.all[0]
        self.rows: npt.NDArray[np.int64] = self.all[1:]

    def row(self, client: int) -> Any:
        """The row of a client, as a view."""
        return self.rows[client]

    def total(self, field: Field) -> int:
        """The sum over all clients."""
        return int(self.rows[:, field].sum())

    def any_at(self, operations: tuple[str, ...]) -> bool:
        """Whether a client is at one of these operations."""
        numbers = [OPERATIONS.index(name) for name in operations]
        return bool(np.isin(self.rows[:, Field.OPERATION], numbers).any())

    def done(self) -> dict[str, int]:
        """How often each operation has ended well, over all clients."""
        sums = self.rows[:, Field.DONE :].sum(axis=0)
        return {name: int(count) for name, count in zip(OPERATIONS, sums, strict=True)}


def size_of(clients: int) -> int:
    """Bytes of a board."""
    return (clients + 1) * _WIDTH * _WORD


def create(clients: int) -> tuple[int, ProgressPage]:
    """A new board, and its descriptor."""
    fd = linux.memfd("stress-board", size_of(clients))
    board = ProgressPage(fd, clients)
    board.rows[:, Field.OPERATION] = IDLE
    return fd, board
