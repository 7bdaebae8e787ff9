"""Metrics: the counters behind Level Zero's metric groups, and the records that hold them.

Every metric but a timestamp is the difference of two snapshots: of the begin and the end of a query, or of
two samples of a stream.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from softnpu.emulator.interface.layout import Layout

SNAPSHOT = Layout(
    """
    time         u64  # CLOCK_MONOTONIC in nanoseconds
    busy         u64  # nanoseconds spent executing
    tile_busy    u64  # nanoseconds spent in inferences, times the tiles that each occupied
    submissions  u64
    commands     u64
    inferences   u64
    overlapped   u64  # inferences that began before their turn
    read         u64  # bytes that commands read: sources of copies, inputs of inferences
    written      u64  # bytes that commands wrote: targets of copies and fills, outputs of inferences
    staged       u64  # bytes that were copied because a tensor could not be used in place
    """
)
"""The counters of a device at one moment. They only grow while the daemon lives."""
STREAM_HEADER = Layout(
    """
    samples   u64  # written so far
    capacity  u64  # how many the stream holds: sample N lies at N modulo capacity
    reserved  48
    """
)
"""The header of a stream's memory; snapshots follow, each a sample."""
STREAM_CAPACITY: Final = 1024
MIN_PERIOD_NS: Final = 1_000_000
MAX_PERIOD_NS: Final = 60_000_000_000
MAX_STREAMS: Final = 2
"""Maximum streams of a session."""


class MetricType(enum.IntEnum):
    """`zet_metric_type_t`: the types used here."""

    DURATION = 0
    EVENT = 1
    TIMESTAMP = 4


class Metric(NamedTuple):
    """One metric: a u64. `fields`: its counters in a snapshot, which are added; without any it is 0."""

    name: str
    description: str
    type: MetricType
    units: str
    fields: tuple[str, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """The words of a snapshot that it needs."""
        return tuple(_WORDS.index(field) for field in self.fields)

    def value(self, before: Sequence[int], after: Sequence[int]) -> int:
        """Return its value between two snapshots. A timestamp is that of the second, 0 if there is none."""
        difference = sum(after[word] - before[word] for word in self.words)
        return after[self.words[0]] if difference and self.type == MetricType.TIMESTAMP else difference


class MetricGroup(NamedTuple):
    """Metrics measured together."""

    name: str
    description: str
    metrics: tuple[Metric, ...]


def _duration(name: str, field: str, description: str) -> Metric:
    return Metric(name, description, MetricType.DURATION, "ns", (field,))


def _count(name: str, fields: str, description: str, units: str) -> Metric:
    return Metric(name, description, MetricType.EVENT, units, tuple(fields.split()))


def _noc(*metrics: Metric) -> MetricGroup:
    traffic = _count("NOC_noc", "read written", "Bytes between the NPU and memory", "bytes")
    shave = _count("L2C_Shave", "", "Accesses of the SHAVEs to their cache: not modelled, 0", "accesses")
    time = Metric("NOC_timestamp", "Time of the second measurement", MetricType.TIMESTAMP, "ns", ("time",))
    return MetricGroup("NOC", "Traffic of the network on chip", (traffic, *metrics, shave, time))


_WORDS = tuple(field.name for field in SNAPSHOT.fields)
_TIME = _duration("Time", "time", "Time between the two measurements")
_OWN: Final = (
    MetricGroup(
        "NPU_Execution",
        "What the device executed",
        (
            _TIME,
            _duration("BusyTime", "busy", "Time in which the device executed commands"),
            _duration("TileBusyTime", "tile_busy", "Time of inferences, times the tiles of each"),
            _count("Submissions", "submissions", "Command lists that ended", "submissions"),
            _count("Commands", "commands", "Commands that ended", "commands"),
            _count("Inferences", "inferences", "Inferences that ended", "inferences"),
            _count("OverlappedInferences", "overlapped", "Those that began early", "inferences"),
        ),
    ),
    MetricGroup(
        "NPU_Memory",
        "Bytes that commands read and wrote",
        (
            _TIME,
            _count("BytesRead", "read", "Sources of copies, inputs of inferences", "bytes"),
            _count("BytesWritten", "written", "Targets of copies and fills, outputs", "bytes"),
            _count("BytesStaged", "staged", "Tensors that could not be used in place", "bytes"),
        ),
    ),
)
GROUPS: Final = (
    *_OWN,
    _noc(
        _count("NOC_DMA_00", "read", "Bytes that commands read", "bytes"),
        _count("NOC_DMA_01", "written", "Bytes that commands wrote", "bytes"),
        _count("L2C_Riscv", "submissions", "Slots that the firmware read, a line each", "accesses"),
    ),
)
"""The metric groups of a device, each in its own domain: they can be active at once.

NOC and its metrics have the names of Intel's firmware, and are 0 where Intel's tests expect it
(`validation/umd-test/test_metric_streamer.cpp`). The metrics are modelled by the counters named here.
"""
GROUPS_3720: Final = (
    *_OWN,
    _noc(
        _count("NOC_DMA", "read written", "Bytes that commands read and wrote", "bytes"),
        _count("L2C_Riscv", "", "Accesses of the firmware to the cache: none here, 0", "accesses"),
    ),
)
"""Those of platform 3720, whose NOC group has other metrics."""


def groups_of(platform: str) -> tuple[MetricGroup, ...]:
    """Return the metric groups of a platform."""
    return GROUPS_3720 if platform == "3720" else GROUPS


def stream_size() -> int:
    """Return the size of a stream's memory in bytes."""
    return STREAM_HEADER.size + STREAM_CAPACITY * SNAPSHOT.size
