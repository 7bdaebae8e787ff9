"""Client memory as mapped by the engine: segments, allocations, byte ranges."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.memory.foreign import ForeignFile
from softnpu.emulator.interface.shared import SharedMapping


class Range(NamedTuple):
    """A range of client memory, identified by file: one file may be mapped twice."""

    file: tuple[int, int]
    start: int
    end: int

    def overlaps(self, other: Range) -> bool:
        """Whether both have a byte in common."""
        return self.file == other.file and max(self.start, other.start) < min(self.end, other.end)


class Mapping:
    """A segment in this process. `shared` gives words and address, `array` the bytes for numpy.

    `identity` is the same for all mappings of one file; this one begins at byte `start` of it. `foreign`: the
    file if others can truncate it. `read_only`: commands may not write it.
    """

    __slots__ = ("array", "foreign", "identity", "read_only", "shared", "start")

    def __init__(self, identity: tuple[int, int], shared: SharedMapping, start: int) -> None:
        self.identity = identity
        self.shared = shared
        self.start = start
        self.array: Bytes = np.frombuffer(self.shared.buffer, dtype=np.uint8)
        self.foreign: ForeignFile | None = None
        self.read_only = False

    @classmethod
    def of_sealed(cls, fd: int, size: int, start: int = 0) -> Mapping:
        """Map a file whose size cannot change; take the descriptor."""
        try:
            status = os.fstat(fd)
            return cls((status.st_dev, status.st_ino), SharedMapping(fd, size, offset=start), start)
        finally:
            os.close(fd)


class Memory:
    """An allocation: a part of a mapping."""

    __slots__ = ("array", "mapping", "offset", "size")

    def __init__(self, mapping: Mapping, offset: int, size: int) -> None:
        self.mapping = mapping
        self.offset = offset
        self.size = size
        self.array: Bytes = mapping.array[offset : offset + size]

    def range(self, offset: int, size: int) -> Range:
        """Return `size` bytes of it from `offset` on."""
        start = self.mapping.start + self.offset + offset
        return Range(self.mapping.identity, start, start + size)
