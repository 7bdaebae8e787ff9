"""The engine's part of the status page. Counted in the engine, written out when it has a moment."""

from __future__ import annotations

import time

from softnpu.emulator.interface import linux, records
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
        self.faults = self._words[_FAULTS]
        self.busy_ns = self._words[_BUSY]
        self.staged = self._words[_STAGED]
        self.tile_busy_ns = self._words[_TILE_BUSY]
        self.overlapped = self._words[_OVERLAPPED]
        self._due_ns = 0

    def tick(self, now_ns: int) -> None:
        """Writes the counters out if the last time is a millisecond ago."""
        if now_ns >= self._due_ns:
            self.write(now_ns)

    def write(self, now_ns: int | None = None) -> None:
        """Writes the counters and the heartbeat out."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        words = self._words
        words[_HEARTBEAT] = now
        words[_SUBMISSIONS] = self.submissions
        words[_COMMANDS] = self.commands
        words[_INFERENCES] = self.inferences
        words[_FAULTS] = self.faults
        words[_BUSY] = self.busy_ns
        words[_STAGED] = self.staged
        words[_TILE_BUSY] = self.tile_busy_ns
        words[_OVERLAPPED] = self.overlapped
        self._due_ns = now + _EVERY_NS
