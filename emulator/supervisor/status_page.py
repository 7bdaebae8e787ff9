"""The status page: a small read-only view of the daemon for monitors that have no session.

It is a sealed memory file, found through the lock file as `/proc/PID/fd/N`: it has no name in
/dev/shm that a killed daemon could leave behind.
"""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_left

from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.activity_messages import Histogram
from softnpu.emulator.interface.records import LATENCY_BOUNDS_NS, Latency, StatusWord

_WORD = struct.Struct("=Q")
_COUNTERS = {
    "engine_pid": StatusWord.ENGINE_PID,
    "submissions": StatusWord.SUBMISSIONS,
    "commands": StatusWord.COMMANDS,
    "inferences": StatusWord.INFERENCES,
    "faults": StatusWord.FAULTS,
    "busy_ns": StatusWord.BUSY,
    "staged_bytes": StatusWord.STAGED,
    "heartbeat_ns": StatusWord.HEARTBEAT,
    "hangs": StatusWord.HANGS,
    "aborted": StatusWord.ABORTED,
    "offences": StatusWord.OFFENCES,
    "refusals": StatusWord.REFUSALS,
    "tile_busy_ns": StatusWord.TILE_BUSY,
    "overlapped": StatusWord.OVERLAPPED,
    "device_clock_ns": StatusWord.DEVICE_CLOCK,
    "late": StatusWord.LATE,
    "unmodelled": StatusWord.UNMODELLED,
    "queued": StatusWord.QUEUED,
    "read_bytes": StatusWord.READ,
    "written_bytes": StatusWord.WRITTEN,
    "build_failures": StatusWord.BUILD_FAILURES,
}
"""The fields of an `EngineStatus` that are words of the page."""
_HISTOGRAM = struct.Struct(f"={records.HISTOGRAM_WORDS}Q")


class StatusPage:
    """The writer's side in the supervisor. What the supervisor itself relies on is never read from here."""

    def __init__(self, devices: int) -> None:
        size = records.status_size(devices)
        self._devices = devices
        self.fd = linux.memfd("status", size)
        linux.seal(self.fd, linux.SEALS_FIXED_SIZE)
        self.reader_fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        # a memory file is open to everybody who holds a descriptor of it: who got the one for reading could
        # open it again for writing. Clients of the daemon's own user could change this back
        os.fchmod(self.fd, 0o400)
        self._map = linux.map_shared(self.fd, size)
        header = (records.STATUS_MAGIC, records.STATUS_VERSION, devices, os.getpid(), time.time_ns(), 0)
        records.STATUS_HEADER.pack_into(self._map, 0, *header, len(Latency))

    @property
    def proc_path(self) -> str:
        """Where a process of the same user can open the page."""
        return f"/proc/{os.getpid()}/fd/{self.reader_fd}"

    def set(self, device: int, word: StatusWord, value: int) -> None:
        _WORD.pack_into(self._map, records.status_offset(device) + 8 * word, value)

    def get(self, device: int, word: StatusWord) -> int:
        value: int = _WORD.unpack_from(self._map, records.status_offset(device) + 8 * word)[0]
        return value

    def set_trace(self, number: int) -> None:
        """Show the number of the trace that is being made, 0 for none."""
        _WORD.pack_into(self._map, records.STATUS_TRACE, number)

    def counters(self, device: int) -> dict[str, int]:
        """The words that an `EngineStatus` has, by its fields."""
        return {field: self.get(device, word) for field, word in _COUNTERS.items()}

    def count_time(self, device: int, latency: Latency, time_ns: int) -> None:
        """Count something that took so long in a histogram of which the supervisor is the writer."""
        start = records.histogram_offset(self._devices, device, latency)
        for word, amount in ((bisect_left(LATENCY_BOUNDS_NS, time_ns), 1), (records.HISTOGRAM_SUM, time_ns)):
            (before,) = _WORD.unpack_from(self._map, start + 8 * word)
            _WORD.pack_into(self._map, start + 8 * word, before + amount)

    def histograms(self, device: int) -> tuple[Histogram, ...]:
        """All histograms of a device."""
        histograms = []
        for latency in Latency:
            start = records.histogram_offset(self._devices, device, latency)
            words = _HISTOGRAM.unpack_from(self._map, start)
            counts, sum_ns = words[: records.HISTOGRAM_SUM], words[records.HISTOGRAM_SUM]
            histograms.append(Histogram(device=device, of=latency.name.lower(), counts=counts, sum_ns=sum_ns))
        return tuple(histograms)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
        os.close(self.reader_fd)
