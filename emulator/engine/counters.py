"""The engine's part of the status page.

Who was told of the end of a submission finds it in the page: its counters are written out before its signal.
"""

from __future__ import annotations

import time

from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import StatusWord

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


class Counters:
    """Counters of one device; they go on from what an earlier engine of this daemon counted."""

    def __init__(self, page_fd: int, devices: int, device: int) -> None:
        buffer = linux.map_shared(page_fd, records.status_size(devices))
        base = records.status_offset(device) // 8
        self._words = memoryview(buffer).cast("Q")[base : base + records.STATUS_DEVICE_SIZE // 8]
        self.submissions = self._words[_SUBMISSIONS]
        self.commands = self._words[_COMMANDS]
        self.inferences = self._words[_INFERENCES]
        self.busy_ns = self._words[_BUSY]
        self._due_ns = 0

    def tick(self, now_ns: int) -> None:
        """A sign of life, if the last one is a millisecond ago."""
        if now_ns >= self._due_ns:
            self.write(now_ns)

    def write(self, now_ns: int | None = None) -> None:
        """A sign of life, and the counters of the work that is not at its end yet."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        self._words[_HEARTBEAT] = now
        self.publish()
        self._due_ns = now + _EVERY_NS

    def publish(self) -> None:
        """Writes out what changes with every submission; the rest is written when it changes."""
        words = self._words
        words[_SUBMISSIONS] = self.submissions
        words[_COMMANDS] = self.commands
        words[_INFERENCES] = self.inferences
        words[_BUSY] = self.busy_ns

    def count_fault(self) -> None:
        """One more submission has failed."""
        self._words[_FAULTS] += 1

    def count_staged(self, size: int) -> None:
        """Bytes that were copied because a tensor could not be used in place."""
        self._words[_STAGED] += size

    def count_overlapped(self) -> None:
        """One more inference has begun before its turn."""
        self._words[_OVERLAPPED] += 1

    def count_tiles(self, tile_ns: int) -> None:
        """Nanoseconds of an inference, times its tiles."""
        self._words[_TILE_BUSY] += tile_ns
