"""Reads a ring of trace records from outside, concurrently with its writer. Its content is untrusted."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.emulator.common.address_range import map_for_reading
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.trace_messages import TraceRing

Records = npt.NDArray[np.void]

_TYPES: Final = {"u16": "<u2", "u32": "<u4", "u64": "<u8"}
RECORD: Final = np.dtype([(field.name, _TYPES[field.type]) for field in trace.RECORD.fields])
assert RECORD.itemsize == trace.RECORD.size
_PATIENCE: Final = 20
"""Readings after which a half-written record counts as lost: its thread was ended in the middle."""
_LOOK_AHEAD: Final = 1024
_FIRST_CHUNK: Final = 64
_MOST_SKIPS: Final = 64
_LARGEST_LOSS: Final = 1 << 31
"""Slots have the low 32 bits of a number: one ahead by less than half of their range is a later one."""


class RingReader:
    """The records of one ring, each read once and in order; `lost` counts the missed ones."""

    def __init__(self, info: TraceRing, fd: int) -> None:
        self.info = info
        self.lost = 0
        try:
            size = trace.ring_size(info.records)
            if os.fstat(fd).st_size < size:
                raise OSError(f"ring {info.ring} of {os.fstat(fd).st_size} bytes, expected {size}")
            self._memory = map_for_reading(fd, size)
        finally:
            os.close(fd)
        self._slots: Records = np.frombuffer(
            self._memory, RECORD, count=info.records, offset=trace.NAMES * trace.NAME_SIZE
        )
        self._read = 0  # number of the last record read, or given up
        self._stuck = 0  # how often in a row the next record was unfinished

    def read(self, final: bool = False) -> Records:
        """Return the records since the last reading; at most as many as the ring holds."""
        capacity, parts, skips = self.info.records, [], 0
        room, chunk = capacity, _FIRST_CHUNK
        while room > 0:
            at = (self._read + 1) % capacity
            wanted = min(capacity - at, room, chunk)
            part = self._read_part(at, wanted)
            room -= len(part)
            # near the newest record a large chunk would be copied for each one written meanwhile
            chunk = chunk * 2 if len(part) == wanted else _FIRST_CHUNK
            if len(part):
                parts.append(part)
                self._read += len(part)
                self._stuck = 0
            elif skips >= _MOST_SKIPS or not self._skip(at, final):
                break
            else:
                skips += 1
        return np.concatenate(parts) if parts else np.empty(0, RECORD)

    def names(self) -> dict[int, str]:
        """Return the names of the ring by index."""
        names = {}
        for index in range(1, trace.NAMES):
            at = index * trace.NAME_SIZE
            data = bytes(self._memory[at : at + trace.NAME_SIZE]).split(b"\0", 1)[0]
            if data:
                names[index] = "".join(c if c.isprintable() else "?" for c in data.decode(errors="replace"))
        return names

    def _read_part(self, at: int, count: int) -> Records:
        """Return the complete records from slot `at` on, as long as they are consecutive."""
        slots = self._slots[at : at + count]
        copied = slots.copy()
        # read after the copy: detects slots overwritten meanwhile
        begins = slots["begin"].copy()
        numbers = self._numbers(count)
        good = (copied["begin"] == numbers) & (copied["end"] == numbers) & (begins == numbers)
        return copied if good.all() else copied[: int(good.argmin())]

    def _numbers(self, count: int) -> npt.NDArray[Any]:
        return ((self._read + 1 + np.arange(count)) & 0xFFFFFFFF).astype(np.uint32)

    def _skip(self, at: int, final: bool) -> bool:
        """Give up overwritten or unfinished records; return False to wait for them."""
        capacity = self.info.records
        beyond_next = (int(self._slots["end"][at]) - (self._read + 1)) & 0xFFFFFFFF
        if beyond_next < _LARGEST_LOSS:
            # a later record is in its place, or it has just arrived
            ahead = self._newest() - self._read
            if ahead > capacity:
                # a running writer overwrites the oldest of the rest
                self._give_up(ahead - capacity + (0 if final else capacity // 8))
                return True
        self._stuck += 1
        if not final and self._stuck < _PATIENCE:
            return False
        count = min(_LOOK_AHEAD, capacity - 1)
        slots = (self._read + 1 + np.arange(count)) % capacity
        written = np.flatnonzero(self._slots["end"][slots] == self._numbers(count))
        # nothing behind it is written, or it is itself by now
        if not len(written) or not written[0]:
            return False
        self._give_up(int(written[0]))
        return True

    def _newest(self) -> int:
        """Return the number of the newest record in the ring, as far as its slots are plausible."""
        capacity = self.info.records
        ends = self._slots["end"].astype(np.int64)
        ahead = (ends - self._read) & 0xFFFFFFFF
        ahead[(ends % capacity != np.arange(capacity)) | (ahead >= _LARGEST_LOSS)] = 0
        return self._read + int(ahead.max())

    def _give_up(self, count: int) -> None:
        self._read += count
        self.lost += count
        self._stuck = 0
