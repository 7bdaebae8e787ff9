"""Reads a ring of trace records from outside, while its writer writes. What is in it is not trusted."""

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
"""Readings after which a record that is half written counts as lost: its thread was ended in the middle."""
_LOOK_AHEAD: Final = 1024
_FIRST_CHUNK: Final = 64
_MOST_SKIPS: Final = 64
_LARGEST_LOSS: Final = 1 << 31


class RingReader:
    """The records of one ring, each read once and in order; `lost` counts those that were not to be had."""

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
        self._read = 0  # number of the last record that was read, or given up
        self._stuck = 0

    def read(self, final: bool = False) -> Records:
        """The records since the last reading; at most as many as the ring holds."""
        capacity, parts, skips = self.info.records, [], 0
        room, chunk = capacity, _FIRST_CHUNK
        while room > 0:
            at = (self._read + 1) % capacity
            wanted = min(capacity - at, room, chunk)
            part = self._read_part(at, wanted)
            room -= len(part)
            # behind the newest record a large chunk would be copied for each that is written meanwhile
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
        """The names of the ring by index."""
        names = {}
        for index in range(1, trace.NAMES):
            at = index * trace.NAME_SIZE
            data = bytes(self._memory[at : at + trace.NAME_SIZE]).split(b"\0", 1)[0]
            if data:
                names[index] = "".join(c if c.isprintable() else "?" for c in data.decode(errors="replace"))
        return names

    def _read_part(self, at: int, count: int) -> Records:
        """The records from slot `at` on that are complete, and are those that come next."""
        slots = self._slots[at : at + count]
        copied = slots.copy()
        # after the copy: what has been overwritten meanwhile shows here
        begins = slots["begin"].copy()
        numbers = self._numbers(count)
        good = (copied["begin"] == numbers) & (copied["end"] == numbers) & (begins == numbers)
        return copied if good.all() else copied[: int(good.argmin())]

    def _numbers(self, count: int) -> npt.NDArray[Any]:
        return ((self._read + 1 + np.arange(count)) & 0xFFFFFFFF).astype(np.uint32)

    def _skip(self, at: int, final: bool) -> bool:
        """Give up records that were overwritten or never finished; False to wait for them."""
        capacity = self.info.records
        if (int(self._slots["end"][at]) - self._read - 1) & 0xFFFFFFFF < _LARGEST_LOSS:
            # a later record is in its place, or it has come just now
            ahead = self._newest() - self._read
            if ahead > capacity:
                # while the writer goes on it overwrites the oldest of those that are left
                self._give_up(ahead - capacity + (0 if final else capacity // 8))
                return True
        self._stuck += 1
        if not final and self._stuck < _PATIENCE:
            return False
        count = min(_LOOK_AHEAD, capacity - 1)
        slots = (self._read + 1 + np.arange(count)) % capacity
        written = np.flatnonzero(self._slots["end"][slots] == self._numbers(count))
        if not len(written) or not written[0]:
            return False
        self._give_up(int(written[0]))
        return True

    def _newest(self) -> int:
        """Number of the newest record in the ring, as far as its slots are believable."""
        capacity = self.info.records
        ends = self._slots["end"].astype(np.int64)
        ahead = (ends - self._read) & 0xFFFFFFFF
        ahead[(ends % capacity != np.arange(capacity)) | (ahead >= _LARGEST_LOSS)] = 0
        return self._read + int(ahead.max())

    def _give_up(self, count: int) -> None:
        self._read += count
        self.lost += count
        self._stuck = 0
