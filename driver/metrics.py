"""Metric groups, queries and streamers (`zet_api.h`): device counters while commands run.

As with the real driver, all of it is absent unless `ZET_ENABLE_METRICS` enables it.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from softnpu.driver.errors import ZeError, check_type, error, invalid_argument, uninitialized
from softnpu.driver.handle import Handle
from softnpu.driver.properties import Record
from softnpu.driver.query_pool import Query, QueryPool
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import metrics
from softnpu.emulator.interface.metrics import SNAPSHOT, MetricType
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.block import Block
    from softnpu.driver.connection import Connection
    from softnpu.driver.context_base import ContextBase

ENV_ENABLE: Final = "ZET_ENABLE_METRICS"
"""`1`, or any text without a `0` first: Level Zero's metric groups (`zetMetric...`) exist."""


class SamplingType(enum.IntFlag):
    """`zet_metric_group_sampling_type_flags_t`."""

    EVENT_BASED = 1
    TIME_BASED = 2


class CalculationType(enum.IntEnum):
    """`zet_metric_group_calculation_type_t`."""

    METRIC_VALUES = 0
    MAX_METRIC_VALUES = 1


class MetricProperties(Record, frozen=True, kw_only=True):
    """`zet_metric_properties_t`; every result is a u64."""

    name: str
    description: str
    component: str
    tier_number: int
    metric_type: MetricType
    result_units: str


class MetricGroupProperties(Record, frozen=True, kw_only=True):
    """`zet_metric_group_properties_t`."""

    name: str
    description: str
    sampling_type: SamplingType
    domain: int
    metric_count: int


class MetricGroup:
    """`zet_metric_group_handle_t`: a group of one device. `holder` is the context that activated it."""

    def __init__(self, connection: Connection, device: int, index: int, group: metrics.MetricGroup) -> None:
        self._connection = connection
        self._device = device
        self.index = index
        self.holder: Handle | None = None
        self._group = group

    @property
    def report_size(self) -> int:
        """Bytes of one report: a u64 for each metric."""
        return 8 * len(self._group.metrics)

    @property
    def active(self) -> bool:
        """Whether a living context has activated it."""
        return self.holder is not None and not self.holder.destroyed

    def get_properties(self) -> MetricGroupProperties:
        """`zetMetricGroupGetProperties`."""
        return MetricGroupProperties(
            name=self._group.name,
            description=self._group.description,
            sampling_type=SamplingType.EVENT_BASED | SamplingType.TIME_BASED,
            domain=self.index + 1,
            metric_count=len(self._group.metrics),
        )

    def get_metrics(self) -> list[MetricProperties]:
        """`zetMetricGet` and `zetMetricGetProperties`: the metrics, in the order of a report."""
        return [
            MetricProperties(
                name=metric.name,
                description=metric.description,
                component="NPU",
                tier_number=1,
                metric_type=metric.type,
                result_units=metric.units,
            )
            for metric in self._group.metrics
        ]

    def calculate_metric_values(
        self, raw: bytes, kind: CalculationType | int = CalculationType.METRIC_VALUES
    ) -> list[int]:
        """`zetMetricGroupCalculateMetricValues`: the values of all reports, or the largest of each metric.

        Bytes after the last whole report are ignored.
        Raises `ZeError` with INVALID_ENUMERATION for another `kind`.
        """
        if kind not in list(CalculationType):
            raise error(
                "zetMetricGroupCalculateMetricValues",
                ZeResult.ERROR_INVALID_ENUMERATION,
                "calculation type",
                found=f"{int(kind)}",
                expected="METRIC_VALUES (0) or MAX_METRIC_VALUES (1)",
            )
        count = len(self._group.metrics)
        whole = len(raw) - len(raw) % self.report_size
        values = list(memoryview(raw)[:whole].cast("Q"))
        if kind == CalculationType.METRIC_VALUES:
            return values
        return [max(values[index::count], default=0) for index in range(count)]

    def _check_of(self, call: str, context: ContextBase) -> None:
        """Raise `ZeError` with INVALID_ARGUMENT unless it belongs to the device of this context."""
        name = f"metric group {self._group.name}"
        context._check_session(call, name, self._connection)
        device = context._device_info.index
        if self._device != device:
            expected = f"a group of device {device}, as the context"
            raise invalid_argument(call, name, found=f"of device {self._device}", expected=expected)

    def _report(self, before: Sequence[int], after: Sequence[int]) -> bytes:
        """Return the report of what was counted between two snapshots."""
        values = (metric.value(before, after) for metric in self._group.metrics)
        return b"".join(value.to_bytes(8, "little") for value in values)


def enabled() -> bool:
    """Return whether the program has enabled metrics, as Intel's driver reads the variable."""
    return os.environ.get(ENV_ENABLE, "")[:1] not in {"", "0"}


def check_enabled() -> None:
    """Raise `ZeError` with UNSUPPORTED_FEATURE unless metrics are enabled."""
    if not enabled():
        raise error(
            "zetMetricGroupGet",
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            "metrics",
            found=f"{ENV_ENABLE} is {os.environ.get(ENV_ENABLE) or 'not set'}",
            expected="1, or any text that does not begin with 0",
            hint="set it before the program starts",
        )


def groups_of(connection: Connection, device: int, platform: str) -> tuple[MetricGroup, ...]:
    """Create the groups of a device of the daemon."""
    known = metrics.groups_of(platform)
    return tuple(MetricGroup(connection, device, number, group) for number, group in enumerate(known))


def activate(context: ContextBase, known: Sequence[MetricGroup], groups: Sequence[MetricGroup]) -> None:
    """Activate exactly these groups; none deactivates all of this context. `known`: its device's.

    Raises `ZeError`: UNINITIALIZED unless metrics are enabled; INVALID_ARGUMENT for groups of another device
    or driver, or activated by another context. The other groups are activated regardless, as with the real
    driver.
    """
    call = "zetContextActivateMetricGroups"
    context._check(call)
    if not enabled():
        raise uninitialized(call, "metrics", found="not enabled", expected=f"{ENV_ENABLE}=1")
    for group in known:
        if group.holder is context:
            group.holder = None
    failure: ZeError | None = None
    for group in groups:
        check_type(call, "metric group", group, MetricGroup)
        try:
            group._check_of(call, context)
            if group.active and group.holder is not context:
                name = f"metric group {group.get_properties().name}"
                found = "active in another context"
                raise invalid_argument(call, name, found=found, expected="a free group of this device")
            group.holder = context
        except ZeError as error:
            failure = error
    if failure is not None:
        raise failure


class MetricQueryPool(QueryPool):
    """`zet_metric_query_pool_handle_t`: room for `count` queries of one group."""

    _name = "metric query pool"
    _destroy_call = "zetMetricQueryPoolDestroy"

    def __init__(self, context: ContextBase, group: MetricGroup, count: int) -> None:
        call = "zetMetricQueryPoolCreate"
        check_type(call, "metric group", group, MetricGroup)
        if not enabled():
            raise uninitialized(call, "metrics", found="not enabled", expected=f"{ENV_ENABLE}=1")
        group._check_of(call, context)
        self._check_count(call, count)
        if not group.active:
            raise _not_ready(call)
        self.group = group
        self._allocate(call, context, count, 2 * SNAPSHOT.size)

    def create_query(self, index: int) -> MetricQuery:
        """`zetMetricQueryCreate`.

        Raises `ZeError`: DEPENDENCY_UNAVAILABLE if the group is not active, INVALID_ARGUMENT for an index out
        of range, HANDLE_OBJECT_IN_USE for a used one.
        """
        call = "zetMetricQueryCreate"
        self._check(call)
        if not self.group.active:
            raise error(
                call,
                ZeResult.ERROR_DEPENDENCY_UNAVAILABLE,
                "metric group",
                found="not active",
                expected="active",
                hint="activate it",
            )
        self._acquire(call, index)
        return MetricQuery(self, index)


class MetricQuery(Query):
    """`zet_metric_query_handle_t`: the counts between its begin and its end in a command list."""

    _pool: MetricQueryPool

    def __init__(self, pool: MetricQueryPool, index: int) -> None:
        super().__init__(pool, index)
        self.reset()

    def reset(self) -> None:
        """`zetMetricQueryReset`: set all values to 0."""
        self._check("zetMetricQueryReset")
        block, start = self._pool._block, self._start
        block.mapping.buffer[start : start + 2 * SNAPSHOT.size] = bytes(2 * SNAPSHOT.size)

    def get_data(self) -> bytes:
        """`zetMetricQueryGetData`: one report; zeros before the end has run."""
        self._check("zetMetricQueryGetData")
        block, start = self._pool._block, self._start
        before = SNAPSHOT.struct.unpack_from(block.mapping.buffer, start)
        after = SNAPSHOT.struct.unpack_from(block.mapping.buffer, start + SNAPSHOT.size)
        return self._pool.group._report(before, after if after[0] >= before[0] else before)

    def _location(self, call: str, end: bool) -> tuple[Block, int]:
        """Return the location of the snapshot at its begin, or its end."""
        self._check(call)
        return self._pool._block, self._offset + end * SNAPSHOT.size


class MetricStreamer(Handle):
    """`zet_metric_streamer_handle_t`: periodic reports of a group, written by the daemon."""

    def __init__(self, context: ContextBase, group: MetricGroup, period_ns: int) -> None:
        call = "zetMetricStreamerOpen"
        check_type(call, "metric group", group, MetricGroup)
        group._check_of(call, context)
        if not group.active:
            raise _not_ready(call)
        self.group = group
        connection = context._connection
        opened, (fd,) = connection.request(
            call, msg.MetricStreamOpen(context=context.handle, period=period_ns), msg.MetricStreamOpened
        )
        try:
            self._map = mmap.mmap(fd, metrics.stream_size(), prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._next = 1  # the sample of the next report; it needs the one before
        self._register(context, connection, _close_stream, connection, opened.stream)

    @property
    def available(self) -> int:
        """Reports readable now. The stream's capacity bounds them; older ones are lost."""
        self._check("zetMetricStreamerReadData")
        samples = self._samples()
        self._next = max(self._next, samples - metrics.STREAM_CAPACITY + 2)
        return samples - self._next

    def read_data(self, max_reports: int | None = None) -> bytes:
        """`zetMetricStreamerReadData`: the oldest unread reports, at most `max_reports`.

        Raises `ZeError` with INVALID_ARGUMENT for less than 0.
        """
        if max_reports is not None and max_reports < 0:
            call, name = "zetMetricStreamerReadData", "metric reports"
            raise invalid_argument(call, name, found=f"at most {max_reports}", expected="0 or more, or None")
        while True:
            count = self.available
            first, count = self._next, count if max_reports is None else min(count, max_reports)
            copied = self._map[:]  # at once: the daemon keeps writing
            # none was overwritten meanwhile; the sample after the last may be half written
            if self._samples() - first < metrics.STREAM_CAPACITY - 1:
                self._next = first + count
                snapshots = [_sample(copied, number) for number in range(first - 1, first + count)]
                return b"".join(self.group._report(*pair) for pair in pairwise(snapshots))

    def _samples(self) -> int:
        return int(metrics.STREAM_HEADER.struct.unpack_from(self._map)[0])

    def _drop_references(self) -> None:
        self._map.close()


def _sample(stream: bytes, number: int) -> tuple[int, ...]:
    at = metrics.STREAM_HEADER.size + number % metrics.STREAM_CAPACITY * SNAPSHOT.size
    return SNAPSHOT.struct.unpack_from(stream, at)


def _close_stream(connection: Connection, stream: int) -> None:
    if not connection.is_lost():
        connection.request("zetMetricStreamerClose", msg.MetricStreamClose(stream=stream), msg.Ok)


def _not_ready(call: str) -> ZeError:
    name = "metric group"
    return error(call, ZeResult.NOT_READY, name, found="not active", expected="active", hint="activate it")
