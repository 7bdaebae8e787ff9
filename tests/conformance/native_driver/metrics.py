"""Metric functions of the native driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char, c_size_t, c_uint32, c_uint64, c_void_p

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api import structures as api
from tests.conformance.api.structures import Answer, Handle
from tests.conformance.native_driver import library as lib
from tests.conformance.native_driver.session import (
    Session,
    answer,
    array,
    call,
    data,
    each,
    events_of,
    handle,
    made,
    properties,
)

_Group = lib.structure(
    "Group",
    ("name", c_char * 256),
    ("description", c_char * 256),
    ("samplingType", c_uint32),
    ("domain", c_uint32),
    ("metricCount", c_uint32),
)


_Metric = lib.structure(
    "Metric",
    ("name", c_char * 256),
    ("description", c_char * 256),
    ("component", c_char * 256),
    ("tierNumber", c_uint32),
    ("metricType", c_uint32),
    ("resultType", c_uint32),
    ("resultUnits", c_char * 256),
)


class _Value(ctypes.Structure):
    _fields_ = (("type", c_uint32), ("value", c_uint64))


_Pair = lib.structure("Pair", ("first", c_uint32), ("second", c_uint32))
"""A query pool's type and count, or a streamer's number of reports and period."""


class NativeMetrics(Session):
    """Groups, queries and streamers."""

    def zet_metric_group_get(self, device: Handle) -> Answer[Sequence[Handle]]:
        result, groups = each("zetMetricGroupGet", c_void_p, True, handle(device))
        return answer(result, lambda: groups)

    def zet_metric_group_get_properties(self, group: Handle) -> Answer[api.MetricGroupProperties]:
        filled = _Group()
        result = properties("zetMetricGroupGetProperties", filled, True, handle(group))
        numbers = (filled.samplingType, filled.domain, filled.metricCount)
        return answer(result, lambda: api.MetricGroupProperties(filled.name.decode(), *numbers))

    def zet_metric_get(self, group: Handle) -> Answer[Sequence[api.MetricProperties]]:
        result, metrics = each("zetMetricGet", c_void_p, True, handle(group))
        filled = [_Metric() for _ in metrics]
        for metric, room in zip(metrics, filled, strict=True):
            assert properties("zetMetricGetProperties", room, True, handle(metric)) == ZeResult.SUCCESS
        return answer(
            result,
            lambda: [
                api.MetricProperties(room.name.decode(), room.metricType, room.resultUnits.decode())
                for room in filled
            ],
        )

    def zet_metric_group_calculate_metric_values(
        self, group: Handle, raw: bytes, kind: int = 0
    ) -> Answer[Sequence[int]]:
        name, count = "zetMetricGroupCalculateMetricValues", c_uint32()
        arguments = (handle(group), c_uint32(kind), c_size_t(len(raw)), raw, ctypes.byref(count))
        result = call(name, *arguments, None)
        if result != ZeResult.SUCCESS:
            return Answer(result)
        values = (_Value * max(1, count.value))()
        result = call(name, *arguments, values)
        return answer(result, lambda: [value.value for value in values[: count.value]])

    def zet_context_activate_metric_groups(
        self, context: Handle, device: Handle, groups: Sequence[Handle]
    ) -> ZeResult:
        listed = array(groups) if groups else None
        return call(
            "zetContextActivateMetricGroups", handle(context), handle(device), c_uint32(len(groups)), listed
        )

    def zet_metric_query_pool_create(
        self, context: Handle, device: Handle, group: Handle, count: int
    ) -> Answer[Handle]:
        desc = _Pair(stype=4, first=1, second=count)
        handles = (handle(context), handle(device), handle(group))
        return made("zetMetricQueryPoolCreate", True, *handles, ctypes.byref(desc))

    def zet_metric_query_pool_destroy(self, pool: Handle) -> ZeResult:
        return call("zetMetricQueryPoolDestroy", handle(pool))

    def zet_metric_query_create(self, pool: Handle, index: int) -> Answer[Handle]:
        return made("zetMetricQueryCreate", True, handle(pool), c_uint32(index))

    def zet_metric_query_destroy(self, query: Handle) -> ZeResult:
        return call("zetMetricQueryDestroy", handle(query))

    def zet_metric_query_reset(self, query: Handle) -> ZeResult:
        return call("zetMetricQueryReset", handle(query))

    def zet_metric_query_get_data(self, query: Handle) -> Answer[bytes]:
        return data(lib.function("zetMetricQueryGetData"), c_size_t, handle(query))

    def zet_command_list_append_metric_query_begin(self, command_list: Handle, query: Handle) -> ZeResult:
        return call("zetCommandListAppendMetricQueryBegin", handle(command_list), handle(query))

    def zet_command_list_append_metric_query_end(
        self, command_list: Handle, query: Handle, signal: Handle = None
    ) -> ZeResult:
        name = "zetCommandListAppendMetricQueryEnd"
        return call(name, handle(command_list), handle(query), *events_of(signal))

    def zet_metric_streamer_open(
        self,
        context: Handle,
        device: Handle,
        group: Handle,
        period_ns: int,
        notify_every: int = 0,
        event: Handle = None,
    ) -> Answer[Handle]:
        desc = _Pair(stype=3, first=notify_every, second=period_ns)
        handles = (handle(context), handle(device), handle(group))
        return made("zetMetricStreamerOpen", True, *handles, ctypes.byref(desc), handle(event))

    def zet_metric_streamer_close(self, streamer: Handle) -> ZeResult:
        return call("zetMetricStreamerClose", handle(streamer))

    def zet_metric_streamer_read_data(self, streamer: Handle, most: int = 2**32 - 1) -> Answer[bytes]:
        function = lib.function("zetMetricStreamerReadData")
        return data(function, c_size_t, handle(streamer), c_uint32(most))
