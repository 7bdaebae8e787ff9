"""Makes a trace: starts it at the daemon, reads all processes' rings meanwhile, ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from softnpu.driver import Driver, ZeError
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.trace import DEFAULT_RECORDS, TraceFlag, TraceKind
from softnpu.emulator.interface.trace_messages import TraceRing, TraceRole
from softnpu.tools.trace.ring_reader import RECORD, Records, RingReader

POLL_S: Final = 0.1
_FETCH_S: Final = 0.25
_MOST_RECORDS: Final = 4_000_000
"""The most records kept in total: 256 MB."""
_END_S: Final = 2.0
_CALL: Final = "softnpu trace"
_KINDS: Final = {
    TraceRole.CLIENT: (TraceKind.CALL, TraceKind.SUBMIT, TraceKind.COMPLETE),
    TraceRole.ENGINE: (TraceKind.EXECUTE, TraceKind.LAYER, TraceKind.LOAD, TraceKind.TOTALS),
    TraceRole.SUPERVISOR: (TraceKind.REQUEST, TraceKind.STAGE, TraceKind.COUNTER, TraceKind.EVENT),
}
_EARLIER_NS: Final = 60_000_000_000
"""How long before the trace a recorded activity may have begun."""


@dataclass
class RecordedRing:
    """One process's records. `lost`: overwritten or half written; `invalid`: implausible."""

    info: TraceRing
    records: Records
    names: dict[int, str]
    lost: int = 0
    invalid: int = 0


@dataclass
class Recording:
    """A whole trace; times in nanoseconds of CLOCK_MONOTONIC."""

    daemon: int
    start: int
    end: int = 0
    rings: list[RecordedRing] = field(default_factory=list)
    refused: int = 0
    complete: bool = True
    """Whether the daemon has lived to the end of it."""


@dataclass
class _Open:
    reader: RingReader
    parts: list[Records] = field(default_factory=list)
    ended: bool = False


class Collector:
    """One trace of a daemon. `driver` is a connection of the role monitor."""

    def __init__(self, driver: Driver, layers: bool = False, records: int = DEFAULT_RECORDS) -> None:
        self._connection = driver._connection
        self._open: dict[int, _Open] = {}
        self._kept = 0
        self._fetch_at = 0.0
        self.recording = Recording(driver.daemon_pid, time.monotonic_ns())
        self._connection.request(
            _CALL, tracing.TraceStart(records=records, layers=layers), tracing.TraceStarted
        )

    def poll(self) -> None:
        """Take new rings, and read all; existing ones survive the daemon."""
        if time.monotonic() >= self._fetch_at:
            self._fetch_if_alive()
        for number, ring in list(self._open.items()):
            self._read(ring, final=ring.ended)
            if ring.ended:
                self._close(self._open.pop(number))

    def finish(self) -> Recording:
        """End the trace with everything written until now."""
        self._fetch_if_alive()
        self.poll()
        if self.recording.complete:
            try:
                self._connection.request(_CALL, tracing.TraceStop(), msg.Ok)
            except ZeError:
                self.recording.complete = False
        self.recording.end = time.monotonic_ns()
        self._await_engines()
        for ring in self._open.values():
            self._read(ring, final=True)
            self._close(ring)
        self._open.clear()
        self.recording.rings.sort(key=lambda ring: ring.info.ring)
        return self.recording

    def _fetch_if_alive(self) -> None:
        self._fetch_at = time.monotonic() + _FETCH_S
        if self.recording.complete:
            try:
                self._fetch()
            except ZeError:
                self.recording.complete = False

    def _fetch(self) -> None:
        while True:
            answer, fds = self._connection.request(_CALL, tracing.TraceRings(), tracing.TraceRingsAnswer)
            self.recording.refused = answer.refused
            for info, fd in zip(answer.rings, fds, strict=False):
                self._open[info.ring] = _Open(RingReader(info, fd))
            for fd in fds[len(answer.rings) :]:
                os.close(fd)
            for number in answer.ended:
                if number in self._open:
                    self._open[number].ended = True
            if not answer.rings:
                return

    def _await_engines(self) -> None:
        """Read until every living engine has written its counters, its last record."""
        deadline = time.monotonic() + _END_S
        waiting = [ring for ring in self._open.values() if ring.reader.info.role == TraceRole.ENGINE.value]
        while waiting and self.recording.complete and time.monotonic() < deadline:
            for ring in waiting:
                self._read(ring, final=False)
            waiting = [ring for ring in waiting if not ring.ended and not _has_last(ring)]
            if waiting:
                time.sleep(0.005)

    def _read(self, ring: _Open, final: bool) -> None:
        part = ring.reader.read(final)
        room = _MOST_RECORDS - self._kept
        if len(part) > room:
            ring.reader.lost += len(part) - room
            part = part[:room]
        if len(part):
            ring.parts.append(part)
            self._kept += len(part)

    def _close(self, ring: _Open) -> None:
        records = np.concatenate(ring.parts) if ring.parts else np.empty(0, RECORD)
        good = _believable(records, TraceRole(ring.reader.info.role), self.recording.start)
        self.recording.rings.append(
            RecordedRing(
                ring.reader.info,
                records[good],
                ring.reader.names(),
                ring.reader.lost,
                len(records) - int(good.sum()),
            )
        )


def _has_last(ring: _Open) -> bool:
    if not ring.parts:
        return False
    part = ring.parts[-1]
    return bool(((part["kind"] == TraceKind.TOTALS) & (part["flags"] == TraceFlag.END)).any())


def _believable(records: Records, role: TraceRole, start: int) -> np.ndarray:
    """Return which records a process of this role can have written."""
    now = time.monotonic_ns()
    times, durations = records["time"], records["duration"]
    earliest = max(0, start - _EARLIER_NS)
    good: np.ndarray = (times >= earliest) & (times <= now) & (durations <= now - np.minimum(times, now))
    good &= np.isin(records["kind"], _KINDS[role])
    return good


@contextmanager
def collecting(driver: Driver, layers: bool = False, records: int = DEFAULT_RECORDS) -> Iterator[Collector]:
    """Yield a trace that is ended in any case, also on an exception. `records`: per ring, a power of two."""
    collector = Collector(driver, layers, records)
    try:
        yield collector
    finally:
        if not collector.recording.end:
            collector.finish()
