"""The status page: a small read-only view of the daemon for monitors that have no session.

It is a sealed memory file, found through the lock file as `/proc/PID/fd/N`: it has no name in
/dev/shm that a killed daemon could leave behind.
"""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_left
from typing import NamedTuple

from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.activity_messages import Histogram
from softnpu.emulator.interface.records import LATENCY_BOUNDS_NS, Latency, StatusWord
from softnpu.emulator.supervisor.engines.session_lives import SessionLives
from softnpu.emulator.supervisor.undoing import undoing

_WORD = struct.Struct("=Q")
_COUNTERS = {
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
LARGEST_WORDS = (StatusWord.HEARTBEAT, StatusWord.DEVICE_CLOCK)
"""Words of engines that are not added up: the larger one counts."""
_MASK = 2**64 - 1
_LONGEST_NS = 86_400 * 10**9
_HISTOGRAM = struct.Struct(f"={records.HISTOGRAM_WORDS}Q")
_PART = struct.Struct(f"={records.STATUS_DEVICE_SIZE // 8}Q")


class Words(NamedTuple):
    """The words written by an engine: its part of the page, and the histogram of inferences."""

    words: list[int]
    times: list[int]

    @classmethod
    def zeros(cls) -> Words:
        return cls([0] * (records.STATUS_DEVICE_SIZE // 8), [0] * records.HISTOGRAM_WORDS)


class StatusPage:
    """The writer's side in the supervisor, which never relies on values read from here."""

    def __init__(self, devices: int) -> None:
        size = records.status_page_size(devices)
        self._others = records.others_offset(devices)
        self._devices = devices
        # of which the supervisor is the writer: engines map the page, and may write anything into it
        self._counts: dict[tuple[int, StatusWord], int] = {}
        self._histograms: dict[tuple[int, Latency], list[int]] = {}
        with undoing() as undo:
            self.fd = linux.fixed_memfd("status", size)
            undo.callback(os.close, self.fd)
            self.reader_fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self.reader_fd)
            # a memory file is open to everybody who holds a descriptor of it: who got the one for reading
            # could open it again for writing. Clients of the daemon's own user could change this back
            os.fchmod(self.fd, 0o400)
            self._map = linux.map_shared(self.fd, size)
        self.lives = SessionLives(self._map, records.lives_offset(devices))
        header = (records.STATUS_MAGIC, records.STATUS_VERSION, devices, os.getpid(), time.time_ns(), 0)
        records.STATUS_HEADER.pack_into(self._map, 0, *header, len(Latency), 0, 0)

    @property
    def proc_path(self) -> str:
        """The path at which a process of the same user can open the page."""
        return f"/proc/{os.getpid()}/fd/{self.reader_fd}"

    def set(self, device: int, word: StatusWord, value: int) -> None:
        """Publish a number; one out of range, left by a defect, is clamped."""
        value = max(0, min(value, _MASK))
        _WORD.pack_into(self._map, records.status_offset(device) + 8 * word, value)

    def get(self, device: int, word: StatusWord) -> int:
        value: int = _WORD.unpack_from(self._map, records.status_offset(device) + 8 * word)[0]
        return value

    def count(self, device: int, word: StatusWord) -> None:
        """Increment a word owned by the supervisor, regardless of engines' writes."""
        count = self._counts.get((device, word), 0) + 1
        self._counts[device, word] = count
        self.set(device, word, count)

    def total(self, device: int, word: StatusWord) -> int:
        """Return a word of all functions of a device."""
        own = self.get(device, word)
        at = self._others + records.status_offset(device) + 8 * word
        others: int = _WORD.unpack_from(self._map, at)[0]
        return max(own, others) if word in LARGEST_WORDS else (own + others) & _MASK

    def engine_words(self) -> Words:
        """Return the words written by the engine that owns this one-device page."""
        words = _PART.unpack_from(self._map, records.status_offset(0))
        times = _HISTOGRAM.unpack_from(self._map, records.histogram_offset(1, 0, Latency.INFERENCE))
        return Words(list(words), list(times))

    def set_others(self, device: int, sum: Words) -> None:
        """Publish the counters of the other functions' engines."""
        _PART.pack_into(self._map, self._others + records.status_offset(device), *sum.words)
        start = records.histogram_offset(self._devices, device, Latency.INFERENCE)
        _HISTOGRAM.pack_into(self._map, self._others + start, *sum.times)

    def set_trace(self, number: int) -> None:
        """Publish the number of the running trace, 0 for none."""
        _WORD.pack_into(self._map, records.STATUS_TRACE, number)

    def counters(self, device: int) -> dict[str, int]:
        """Return the words that an `EngineStatus` has, by its fields."""
        return {field: self.total(device, word) for field, word in _COUNTERS.items()}

    def count_time(self, device: int, latency: Latency, time_ns: int) -> None:
        """Count something that took so long in a histogram of which the supervisor is the writer.

        A time that an engine made up must not make the sum, which all functions share, outgrow its word.
        """
        time_ns = min(max(time_ns, 0), _LONGEST_NS)
        start = records.histogram_offset(self._devices, device, latency)
        words = self._histograms.setdefault((device, latency), [0] * records.HISTOGRAM_WORDS)
        words[bisect_left(LATENCY_BOUNDS_NS, time_ns)] += 1
        words[records.HISTOGRAM_SUM] = (words[records.HISTOGRAM_SUM] + time_ns) & _MASK
        _HISTOGRAM.pack_into(self._map, start, *words)

    def histograms(self, device: int) -> tuple[Histogram, ...]:
        """Return all histograms of a device."""
        histograms = []
        for latency in Latency:
            start = records.histogram_offset(self._devices, device, latency)
            own = _HISTOGRAM.unpack_from(self._map, start)
            others = _HISTOGRAM.unpack_from(self._map, self._others + start)
            words = tuple((mine + more) & _MASK for mine, more in zip(own, others, strict=True))
            counts, sum_ns = words[: records.HISTOGRAM_SUM], words[records.HISTOGRAM_SUM]
            histograms.append(Histogram(device=device, of=latency.name.lower(), counts=counts, sum_ns=sum_ns))
        return tuple(histograms)

    def close(self) -> None:
        self.lives.close()
        self._map.close()
        os.close(self.fd)
        os.close(self.reader_fd)
