"""Rings of trace records: a process's activity, for an outside reader that it never waits for.

A ring is memory that its writer shares with the tracer: names first, then records of 64 bytes. Record N (from
1) lies at N modulo the number of records, so the newest ones survive even if the writer is killed. A record
carries its number at both ends: a reader that finds another number there has lost a record, or found a
half-written one.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from typing import Final

from softnpu.emulator.common.address_range import map_for_writing
from softnpu.emulator.interface.layout import Layout

RECORD = Layout(
    """
    begin     u32  # number of the record, modulo 2^32; stored first
    kind      u16  # a TraceKind
    name      u16  # index of a name, 0 for none
    time      u64  # CLOCK_MONOTONIC in nanoseconds: when it began
    duration  u64  # nanoseconds, 0 for what takes no time
    thread    u32  # of the kernel
    flags     u32  # TraceFlag
    first     u64  # what these are depends on the kind
    second    u64
    third     u64
    result    u32  # ze_result_t
    end       u32  # number of the record, modulo 2^32; stored last
    """
)
NAME_SIZE: Final = 128
"""Bytes of a name: UTF-8, zero-padded."""
NAMES: Final = 2048
"""Names of a ring; index 0 is never used."""
MIN_RECORDS: Final = 64
DEFAULT_RECORDS: Final = 16384
MAX_RECORDS: Final = 1 << 18


class TraceKind(enum.IntEnum):
    """The type of a record, with the meaning of `first`, `second` and `third`."""

    CALL = 1  # a call of an API
    SUBMIT = 2  # queue, sequence number of the first submission, of the last
    COMPLETE = 3  # the client learns the end of a submission: queue, its sequence number
    EXECUTE = 4  # the engine runs a submission: queue, sequence number, session | inferences << 32
    LAYER = 5  # number of the layer | unit (`TaskType`) << 32, nanoseconds measured, and of CPU time
    LOAD = 6  # an image is loaded
    REQUEST = 7  # the supervisor serves a request: session
    STAGE = 8  # a compiler worker, `thread`, is in this stage: session
    COUNTER = 9  # value, session (0: all), device
    EVENT = 10  # session, device + 1 (0: none), a number
    TOTALS = 11  # the engine's counters: submissions, inferences, busy nanoseconds


class TraceFlag(enum.IntFlag):
    """`BEGIN`: it has begun; a second record marks its end. `END`: it has ended."""

    BEGIN = 1
    END = 2


_BASE: Final = NAMES * NAME_SIZE
_LONGEST: Final = NAME_SIZE - 1


def ring_size(records: int) -> int:
    """Return the size in bytes of a ring with this many records."""
    return _BASE + records * RECORD.size


class TraceWriter:
    """Writes one ring, from any thread. `layers`: also write the layers of inferences."""

    __slots__ = ("_lock", "_map", "_mask", "_names", "_numbers", "_pack", "layers")

    def __init__(self, fd: int, records: int, layers: bool = False) -> None:
        self.layers = layers
        self._map = map_for_writing(fd, ring_size(records))
        self._mask = records - 1
        self._numbers = itertools.count(1)
        self._names: dict[str, int] = {}
        self._lock = threading.RLock()
        self._pack = RECORD.struct.pack_into

    def write(
        self,
        kind: int,
        name: int,
        time_ns: int,
        duration_ns: int = 0,
        flags: int = 0,
        first: int = 0,
        second: int = 0,
        third: int = 0,
        result: int = 0,
        thread: int | None = None,
    ) -> None:
        """Write one record, replacing the oldest."""
        # one call fills it front to back, uninterrupted by threads of this process
        number = next(self._numbers)
        self._pack(
            self._map,
            _BASE + (number & self._mask) * 64,
            number & 0xFFFFFFFF,
            kind,
            name,
            time_ns,
            max(0, duration_ns),
            threading.get_native_id() if thread is None else thread,
            flags,
            first,
            second,
            third,
            result,
            number & 0xFFFFFFFF,
        )

    def name(self, text: str) -> int:
        """Return the index of a name; 0 when there is no room for another."""
        index = self._names.get(text)
        return self._add(text) if index is None else index

    def event(self, text: str, session: int = 0, device: int | None = None, number: int = 0) -> None:
        """Write an event."""
        where = 0 if device is None else device + 1
        self.write(TraceKind.EVENT, self.name(text), time.monotonic_ns(), 0, 0, session, where, number)

    def request(self, tag: str, begun_ns: int, session: int) -> None:
        """Write a served request, from `begun_ns` until now."""
        duration = time.monotonic_ns() - begun_ns
        self.write(TraceKind.REQUEST, self.name(tag), begun_ns, duration, 0, session)

    def counter(self, text: str, value: int, session: int = 0, device: int = 0) -> None:
        """Write the new value of a counter."""
        self.write(
            TraceKind.COUNTER, self.name(text), time.monotonic_ns(), 0, 0, max(0, value), session, device
        )

    def _add(self, text: str) -> int:
        with self._lock:
            if text in self._names or len(self._names) >= NAMES - 1:
                return self._names.get(text, 0)
            index = len(self._names) + 1
            data = text.encode(errors="replace")[:_LONGEST]
            self._map[index * NAME_SIZE : index * NAME_SIZE + len(data)] = data
            # last: its finder may write a record that refers to it
            self._names[text] = index
            return index


active: TraceWriter | None = None
"""The ring of this process while it is traced; in a client each session has its own ring instead."""


def start(writer: TraceWriter) -> None:
    """Start tracing this process."""
    global active
    active = writer


def stop() -> None:
    """Stop tracing this process."""
    global active
    active = None
