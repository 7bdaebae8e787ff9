"""The engine's part of the status page.

A submission's counters are written before its fence is signalled, so a client that sees the signal sees them.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_left
from typing import NamedTuple, TypeVar

from softnpu.emulator.common import linux
from softnpu.emulator.common.arrays import Words
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import HISTOGRAM_SUM, LATENCY_BOUNDS_NS, Latency, StatusWord

_EVERY_NS = 1_000_000

# plain integers: reading a member of an enumeration takes 50 ns, and all are written before every sleep
_HEARTBEAT = int(StatusWord.HEARTBEAT)
_SUBMISSIONS = int(StatusWord.SUBMISSIONS)
_COMMANDS = int(StatusWord.COMMANDS)
_INFERENCES = int(StatusWord.INFERENCES)
_FAULTS = int(StatusWord.FAULTS)
_BUSY = int(StatusWord.BUSY)
_STAGED = int(StatusWord.STAGED)
_TILE_BUSY = int(StatusWord.TILE_BUSY)
_OVERLAPPED = int(StatusWord.OVERLAPPED)
_READ = int(StatusWord.READ)
_WRITTEN = int(StatusWord.WRITTEN)
_DEVICE_CLOCK = int(StatusWord.DEVICE_CLOCK)
_LATE = int(StatusWord.LATE)
_UNMODELLED = int(StatusWord.UNMODELLED)
_QUEUED = int(StatusWord.QUEUED)
_CHANGED = {
    "heartbeat": _HEARTBEAT,
    "submissions": _SUBMISSIONS,
    "commands": _COMMANDS,
    "inferences": _INFERENCES,
    "busy": _BUSY,
    "tile_busy": _TILE_BUSY,
    "read": _READ,
    "written": _WRITTEN,
    "queued": _QUEUED,
}
_LARGEST = 2**64 - 1
_Record = TypeVar("_Record", bound=ctypes.Structure)


class Work(NamedTuple):
    """Totals over a program's commands, or over its first ones. Bytes read and written."""

    commands: int = 0
    inferences: int = 0
    read: int = 0
    written: int = 0


class Counters:
    """The counters of one device, continued from those of an earlier engine of this daemon.

    `due_ns`: when the next heartbeat is due. `queued`: submissions that have not ended.
    """

    def __init__(self, page_fd: int, devices: int, device: int) -> None:
        buffer = linux.map_shared(page_fd, records.status_size(devices))
        words = memoryview(buffer).cast("Q")
        base = records.status_offset(device) // 8
        self._words = words[base : base + records.STATUS_DEVICE_SIZE // 8]
        base = records.histogram_offset(devices, device, Latency.INFERENCE) // 8
        self._inference_times = words[base : base + records.HISTOGRAM_WORDS]
        self.submissions = self._words[_SUBMISSIONS]
        self.commands = self._words[_COMMANDS]
        self.inferences = self._words[_INFERENCES]
        self.busy_ns = self._words[_BUSY]
        self.queued = 0
        self.due_ns = 0

    def write(self, now_ns: int | None = None) -> None:
        """Write the heartbeat, and the counters of unfinished work."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        self._words[_HEARTBEAT] = now
        self._words[_QUEUED] = self.queued
        self.publish()
        self.due_ns = now + _EVERY_NS

    def publish(self) -> None:
        """Write the counters that change with every submission; others are written when they change."""
        words = self._words
        words[_SUBMISSIONS] = self.submissions
        words[_COMMANDS] = self.commands
        words[_INFERENCES] = self.inferences
        words[_BUSY] = self.busy_ns

    def count_inference(self, time_ns: int) -> None:
        """Count the time of one inference; `inferences` counts those of a submission at once."""
        times = self._inference_times
        times[bisect_left(LATENCY_BOUNDS_NS, time_ns)] += 1
        times[HISTOGRAM_SUM] += time_ns

    def count_fault(self) -> None:
        """Count a failed submission."""
        self._words[_FAULTS] += 1

    def count_staged(self, size: int) -> None:
        """Count bytes copied because a tensor could not be used in place."""
        self._words[_STAGED] += size

    def count_overlapped(self) -> None:
        """Count an inference that started before its turn."""
        self._words[_OVERLAPPED] += 1

    def count_traffic(self, read: int, written: int) -> None:
        """Count the bytes that the commands of a submission have read and written."""
        words = self._words
        words[_READ] = (words[_READ] + read) & _LARGEST  # like the C++ part
        words[_WRITTEN] = (words[_WRITTEN] + written) & _LARGEST

    def record(self, make: type[_Record]) -> _Record:
        """Return the addresses of the counters changed by submissions, for the C++ part."""
        self._kept = [
            ctypes.c_char.from_buffer(self._words),
            ctypes.c_char.from_buffer(self._inference_times),
        ]
        words, times = map(ctypes.addressof, self._kept)
        self._bounds = (ctypes.c_uint64 * len(LATENCY_BOUNDS_NS))(*LATENCY_BOUNDS_NS)
        places = {name: words + 8 * word for name, word in _CHANGED.items()}
        return make(
            **places,
            histogram=times,
            bounds=ctypes.addressof(self._bounds),
            bound_count=len(LATENCY_BOUNDS_NS),
        )

    def adopt(self, due_ns: int) -> None:
        """Take over the counts of the C++ part."""
        words = self._words
        self.submissions, self.commands = words[_SUBMISSIONS], words[_COMMANDS]
        self.inferences, self.busy_ns = words[_INFERENCES], words[_BUSY]
        self.queued, self.due_ns = words[_QUEUED], due_ns

    def snapshot(self, out: Words, now_ns: int, used_ns: int, tile_ns: int, done: Work) -> None:
        """Write a `metrics.SNAPSHOT` into `out`; the other arguments are added for the running submission."""
        words = self._words
        out[:] = (
            now_ns,
            self.busy_ns + used_ns,
            words[_TILE_BUSY] + tile_ns,
            self.submissions,
            self.commands + done.commands,
            self.inferences + done.inferences,
            words[_OVERLAPPED],
            words[_READ] + done.read,
            words[_WRITTEN] + done.written,
            words[_STAGED],
        )

    @property
    def device_clock_ns(self) -> int:
        """The modelled clock as left by an earlier engine of this daemon."""
        return self._words[_DEVICE_CLOCK]

    def set_device_clock(self, now_ns: int) -> None:
        """Write the modelled clock."""
        self._words[_DEVICE_CLOCK] = now_ns

    def count_late(self) -> None:
        """Count an inference of a paced device that the host finished late."""
        self._words[_LATE] += 1

    def count_unmodelled(self) -> None:
        """Count an inference without a modelled time."""
        self._words[_UNMODELLED] += 1

    def count_tiles(self, tile_ns: int) -> None:
        """Count the tile-nanoseconds of an inference."""
        self._words[_TILE_BUSY] += tile_ns
