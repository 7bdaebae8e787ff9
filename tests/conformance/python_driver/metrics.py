"""Metric functions of the Python driver."""

from __future__ import annotations

from collections.abc import Sequence

from softnpu.driver import CommandList, Context, Event
from softnpu.driver.device import Device
from softnpu.driver.metrics import MetricGroup, MetricQuery, MetricQueryPool, MetricStreamer
from tests.conformance.api import structures as api
from tests.conformance.api.structures import Handle
from tests.conformance.python_driver.results import Keeper, answers, destruction, live, method, results


class PythonMetrics(Keeper):
    """Groups, queries and streamers."""

    zet_metric_query_pool_destroy = destruction("zetMetricQueryPoolDestroy", MetricQueryPool)
    zet_metric_query_destroy = destruction("zetMetricQueryDestroy", MetricQuery)
    zet_metric_query_reset = method(MetricQuery, "reset")
    zet_metric_streamer_close = destruction("zetMetricStreamerClose", MetricStreamer)

    @answers
    def zet_metric_group_get(self, device: Handle) -> Sequence[Handle]:
        return list(live(device, Device).get_metric_groups())

    @answers
    def zet_metric_group_get_properties(self, group: Handle) -> api.MetricGroupProperties:
        read = live(group, MetricGroup).get_properties()
        return api.MetricGroupProperties(read.name, read.sampling_type, read.domain, read.metric_count)

    @answers
    def zet_metric_get(self, group: Handle) -> Sequence[api.MetricProperties]:
        metrics = live(group, MetricGroup).get_metrics()
        return [api.MetricProperties(one.name, one.metric_type, one.result_units) for one in metrics]

    @answers
    def zet_metric_group_calculate_metric_values(
        self, group: Handle, raw: bytes, kind: int = 0
    ) -> Sequence[int]:
        return live(group, MetricGroup).calculate_metric_values(raw, kind)

    @results
    def zet_context_activate_metric_groups(
        self, context: Handle, device: Handle, groups: Sequence[Handle]
    ) -> None:
        live(device, Device)
        live(context, Context).activate_metric_groups([live(group, MetricGroup) for group in groups])

    @answers
    def zet_metric_query_pool_create(
        self, context: Handle, device: Handle, group: Handle, count: int
    ) -> Handle:
        live(device, Device)
        return self.keep(live(context, Context).create_metric_query_pool(live(group, MetricGroup), count))

    @answers
    def zet_metric_query_create(self, pool: Handle, index: int) -> Handle:
        return self.keep(live(pool, MetricQueryPool).create_query(index))

    @answers
    def zet_metric_query_get_data(self, query: Handle) -> bytes:
        return live(query, MetricQuery).get_data()

    @results
    def zet_command_list_append_metric_query_begin(self, command_list: Handle, query: Handle) -> None:
        live(command_list, CommandList).append_metric_query_begin(live(query, MetricQuery))

    @results
    def zet_command_list_append_metric_query_end(
        self, command_list: Handle, query: Handle, signal: Handle = None
    ) -> None:
        event = None if signal is None else live(signal, Event)
        live(command_list, CommandList).append_metric_query_end(live(query, MetricQuery), event)

    @answers
    def zet_metric_streamer_open(
        self,
        context: Handle,
        device: Handle,
        group: Handle,
        period_ns: int,
        notify_every: int = 0,
        event: Handle = None,
    ) -> Handle:
        live(device, Device)
        notified = None if event is None else live(event, Event)
        chosen = live(group, MetricGroup)
        return self.keep(
            live(context, Context).open_metric_streamer(chosen, period_ns, notify_every, notified)
        )

    @answers
    def zet_metric_streamer_read_data(self, streamer: Handle, most: int = 2**32 - 1) -> bytes:
        return live(streamer, MetricStreamer).read_data(most)
