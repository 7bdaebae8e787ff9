"""Metric groups, queries and streamers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle
from tests.conformance.conftest import PLATFORMS
from tests.conformance.models import COUNT, Model
from tests.conformance.rig import DEADLINE, SECOND, Rig, ok
from tests.support.waiting import wait_until

_PERIOD = SECOND // 1000
_BYTES = 4096
_TIMESTAMP = 4


class Metrics:
    """A context with all groups active."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.groups = rig.api.zet_metric_group_get(rig.device).get()
        ok(rig.api.zet_context_activate_metric_groups(rig.context, rig.device, self.groups))

    def pool(self, group: Handle, count: int = 1) -> Handle:
        rig = self.rig
        return rig.api.zet_metric_query_pool_create(rig.context, rig.device, group, count).get()

    def query(self, group: Handle) -> Handle:
        return self.rig.api.zet_metric_query_create(self.pool(group), 0).get()

    def streamer(self, group: Handle, notify_every: int = 0, event: Handle = None) -> Handle:
        rig = self.rig
        return rig.api.zet_metric_streamer_open(
            rig.context, rig.device, group, _PERIOD, notify_every, event
        ).get()

    def values(self, group: Handle, query: Handle) -> dict[str, int]:
        """Return a query's counts, by metric."""
        api = self.rig.api
        raw = api.zet_metric_query_get_data(query).get()
        values = api.zet_metric_group_calculate_metric_values(group, raw).get()
        return dict(zip(self.names(group), values, strict=True))

    def names(self, group: Handle) -> Sequence[str]:
        return [metric.name for metric in self.rig.api.zet_metric_get(group).get()]

    def counted(self, command_list: Handle, *queries: Handle) -> None:
        """Append a copy, counted by these queries."""
        api = self.rig.api
        for query in queries:
            ok(api.zet_command_list_append_metric_query_begin(command_list, query))
        target, source = self.rig.host(_BYTES), self.rig.host(_BYTES)
        ok(api.ze_command_list_append_memory_copy(command_list, target, source, _BYTES))
        for query in queries:
            ok(api.zet_command_list_append_metric_query_end(command_list, query))


@pytest.fixture
def metrics(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    monkeypatch.setenv("ZET_ENABLE_METRICS", "1")
    return Metrics(rig)


@pytest.mark.parametrize("value", ["true", "1", "yes", " 0"])
def test_any_text_that_does_not_begin_with_0_asks_for_the_groups(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ZET_ENABLE_METRICS", value)
    assert rig.api.zet_metric_group_get(rig.device).get()


@pytest.mark.parametrize("value", [None, "", "0", "01"])
def test_there_are_no_groups_unless_the_program_asks_for_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("ZET_ENABLE_METRICS", raising=False)
    if value is not None:
        monkeypatch.setenv("ZET_ENABLE_METRICS", value)
    assert rig.api.zet_metric_group_get(rig.device).result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    refused = rig.api.zet_context_activate_metric_groups(rig.context, rig.device, [])
    assert refused == ZeResult.ERROR_UNINITIALIZED


def test_groups_have_domains_of_their_own_and_metrics_with_units(metrics: Metrics) -> None:
    api = metrics.rig.api
    described = [api.zet_metric_group_get_properties(group).get() for group in metrics.groups]
    assert [one.name for one in described] == ["NPU_Execution", "NPU_Memory", "NOC"]
    assert [one.domain for one in described] == [1, 2, 3], "above 0, as Intel's tests expect"
    assert all(one.sampling_type == 3 for one in described)
    for group, one in zip(metrics.groups, described, strict=True):
        listed = api.zet_metric_get(group).get()
        assert len(listed) == one.metric_count
        assert {metric.result_units for metric in listed} <= {
            "ns", "submissions", "commands", "inferences", "bytes", "accesses"
        }  # fmt: skip


def test_query_counts_what_runs_between_its_begin_and_its_end(metrics: Metrics) -> None:
    execution, memory, _ = metrics.groups
    first, second = metrics.query(execution), metrics.query(memory)
    command_list = metrics.rig.command_list()
    metrics.counted(command_list, first, second)
    metrics.rig.run(command_list)
    counted = metrics.values(execution, first)
    assert counted["Commands"] == 1
    assert counted["Inferences"] == counted["Submissions"] == 0
    assert 0 < counted["BusyTime"] <= counted["Time"]
    traffic = metrics.values(memory, second)
    assert (traffic["BytesRead"], traffic["BytesWritten"]) == (_BYTES, _BYTES)


def test_query_counts_inferences_and_their_arguments(metrics: Metrics, model: Model) -> None:
    rig = metrics.rig
    graph = rig.graph(model)
    rig.bind(graph, *(rig.host(COUNT * 4) for _ in range(3)))
    execution, memory, _ = metrics.groups
    queries = [metrics.query(group) for group in metrics.groups]
    command_list = rig.command_list()
    for query in queries:
        ok(rig.api.zet_command_list_append_metric_query_begin(command_list, query))
    for _ in range(3):
        ok(rig.api.ze_command_list_append_graph_execute(command_list, graph, None))
    for query in queries:
        ok(rig.api.zet_command_list_append_metric_query_end(command_list, query))
    rig.run(command_list)
    counted = metrics.values(execution, queries[0])
    assert counted["Inferences"] == 3
    assert counted["TileBusyTime"] > counted["BusyTime"]
    traffic = metrics.values(memory, queries[1])
    assert (traffic["BytesRead"], traffic["BytesWritten"]) == (3 * 2 * COUNT * 4, 3 * COUNT * 4)


@pytest.mark.parametrize(
    ("platform", "names"),
    [
        ("4000", "NOC_noc NOC_DMA_00 NOC_DMA_01 L2C_Riscv L2C_Shave NOC_timestamp"),
        ("3720", "NOC_noc NOC_DMA L2C_Riscv L2C_Shave NOC_timestamp"),
    ],
)
def test_noc_has_the_metrics_of_the_platform(metrics: Metrics, platform: str, names: str) -> None:
    api, device = metrics.rig.api, metrics.rig.devices[PLATFORMS.index(platform)]
    noc = api.zet_metric_group_get(device).get()[2]
    assert api.zet_metric_group_get_properties(noc).get().name == "NOC"
    assert metrics.names(noc) == names.split()
    assert api.zet_metric_get(noc).get()[-1].metric_type == _TIMESTAMP


def test_noc_counts_the_traffic_of_a_copy(metrics: Metrics) -> None:
    api, rig, noc = metrics.rig.api, metrics.rig, metrics.groups[2]
    query = metrics.query(noc)
    assert set(metrics.values(noc, query).values()) == {0}
    begin, copy, end = (rig.command_list() for _ in range(3))
    ok(api.zet_command_list_append_metric_query_begin(begin, query))
    metrics.counted(copy)
    ok(api.zet_command_list_append_metric_query_end(end, query))
    before = time.monotonic_ns()
    rig.run(begin, copy, end)
    values = metrics.values(noc, query)
    assert before < values.pop("NOC_timestamp") < time.monotonic_ns()
    assert values == {
        "NOC_noc": 2 * _BYTES, "NOC_DMA_00": _BYTES, "NOC_DMA_01": _BYTES, "L2C_Riscv": 2, "L2C_Shave": 0
    }  # fmt: skip


def test_query_over_several_submissions_counts_them(metrics: Metrics) -> None:
    api, rig = metrics.rig.api, metrics.rig
    execution = metrics.groups[0]
    query = metrics.query(execution)
    begin, middle, end = (rig.command_list() for _ in range(3))
    ok(api.zet_command_list_append_metric_query_begin(begin, query))
    ok(api.ze_command_list_append_barrier(middle))
    ok(api.zet_command_list_append_metric_query_end(end, query))
    rig.run(begin, middle, end)
    counted = metrics.values(execution, query)
    assert (counted["Submissions"], counted["Commands"]) == (2, 1)


def test_query_is_zero_before_its_end_and_after_a_reset(metrics: Metrics) -> None:
    execution = metrics.groups[0]
    query = metrics.query(execution)
    assert set(metrics.values(execution, query).values()) == {0}
    command_list = metrics.rig.command_list()
    metrics.counted(command_list, query)
    metrics.rig.run(command_list)
    assert metrics.values(execution, query)["Commands"] == 1
    ok(metrics.rig.api.zet_metric_query_reset(query))
    assert set(metrics.values(execution, query).values()) == {0}


def test_largest_values_of_reports(metrics: Metrics) -> None:
    group = metrics.groups[1]
    raw = b"".join(value.to_bytes(8, "little") for value in (1, 9, 3, 4, 5, 6, 7, 2))
    calculate = metrics.rig.api.zet_metric_group_calculate_metric_values
    assert list(calculate(group, raw).get()) == [1, 9, 3, 4, 5, 6, 7, 2]
    assert list(calculate(group, raw, 1).get()) == [5, 9, 7, 4]
    assert calculate(group, raw, 2).result == ZeResult.ERROR_INVALID_ENUMERATION


def test_group_belongs_to_one_context_until_that_gives_it_up(metrics: Metrics) -> None:
    api, rig = metrics.rig.api, metrics.rig
    other = rig.new_context()
    activate = api.zet_context_activate_metric_groups
    assert activate(other, rig.device, metrics.groups) == ZeResult.ERROR_INVALID_ARGUMENT
    ok(activate(rig.context, rig.device, metrics.groups))
    ok(activate(rig.context, rig.device, []))
    ok(activate(other, rig.device, metrics.groups[:1]))
    made = api.zet_metric_query_pool_create(rig.context, rig.device, metrics.groups[1], 1)
    assert made.result == ZeResult.NOT_READY


def test_group_is_free_when_its_context_is_destroyed(metrics: Metrics) -> None:
    api, rig = metrics.rig.api, metrics.rig
    ok(api.zet_context_activate_metric_groups(rig.context, rig.device, []))
    other = rig.new_context()
    ok(api.zet_context_activate_metric_groups(other, rig.device, metrics.groups))
    ok(api.ze_context_destroy(other))
    ok(api.zet_context_activate_metric_groups(rig.context, rig.device, metrics.groups))


def test_pool_and_queries_refuse_what_does_not_fit(metrics: Metrics) -> None:
    api, rig, group = metrics.rig.api, metrics.rig, metrics.groups[0]
    empty = api.zet_metric_query_pool_create(rig.context, rig.device, group, 0)
    assert empty.result == ZeResult.ERROR_INVALID_SIZE
    pool = metrics.pool(group, 2)
    query = api.zet_metric_query_create(pool, 1).get()
    assert api.zet_metric_query_create(pool, 1).result == ZeResult.ERROR_HANDLE_OBJECT_IN_USE
    assert api.zet_metric_query_create(pool, 2).result == ZeResult.ERROR_INVALID_ARGUMENT
    assert api.zet_metric_query_pool_destroy(pool) == ZeResult.ERROR_HANDLE_OBJECT_IN_USE
    ok(api.zet_metric_query_destroy(query))
    ok(api.zet_metric_query_pool_destroy(pool))
    spare = metrics.pool(group)
    ok(api.zet_context_activate_metric_groups(rig.context, rig.device, []))
    assert api.zet_metric_query_create(spare, 0).result == ZeResult.ERROR_DEPENDENCY_UNAVAILABLE


def test_streamer_gives_reports_that_add_up(metrics: Metrics) -> None:
    api, memory = metrics.rig.api, metrics.groups[1]
    streamer = metrics.streamer(memory)
    written = metrics.names(memory).index("BytesWritten")
    command_list = metrics.rig.command_list()
    metrics.counted(command_list)
    metrics.rig.run(command_list)
    total = 0

    def all_was_reported() -> bool:
        nonlocal total
        raw = api.zet_metric_streamer_read_data(streamer).get()
        values = api.zet_metric_group_calculate_metric_values(memory, raw).get()
        assert len(values) % 4 == 0
        total += sum(values[written::4])
        return total >= _BYTES

    wait_until(all_was_reported, what="the bytes of the copy in reports")
    ok(api.zet_metric_streamer_close(streamer))


def test_streamer_reads_no_more_than_is_wanted(metrics: Metrics) -> None:
    api, memory = metrics.rig.api, metrics.groups[1]
    event = metrics.rig.event()
    streamer = metrics.streamer(memory, 3, event)
    ok(api.ze_event_host_synchronize(event, DEADLINE))
    assert len(api.zet_metric_streamer_read_data(streamer, 2).get()) == 2 * 4 * 8
    assert len(api.zet_metric_streamer_read_data(streamer, 0).get()) == 0


def test_event_of_a_streamer_is_signalled_when_so_many_reports_are_there(metrics: Metrics) -> None:
    api = metrics.rig.api
    event = metrics.rig.event()
    streamer = metrics.streamer(metrics.groups[0], 5, event)
    wait_until(lambda: api.ze_event_query_status(event) == ZeResult.SUCCESS, what="five reports")
    assert len(api.zet_metric_streamer_read_data(streamer).get()) >= 5 * 7 * 8
    ok(api.zet_metric_streamer_close(streamer))
    ok(api.ze_event_host_reset(event))
    assert api.ze_event_host_synchronize(event, DEADLINE) == ZeResult.NOT_READY


def test_streamer_needs_an_active_group_and_a_period_of_a_millisecond(metrics: Metrics) -> None:
    api, rig, group = metrics.rig.api, metrics.rig, metrics.groups[0]
    fast = api.zet_metric_streamer_open(rig.context, rig.device, group, _PERIOD - 1)
    assert fast.result == ZeResult.ERROR_INVALID_ARGUMENT
    ok(api.zet_context_activate_metric_groups(rig.context, rig.device, []))
    inactive = api.zet_metric_streamer_open(rig.context, rig.device, group, _PERIOD)
    assert inactive.result == ZeResult.NOT_READY


def test_streamer_ends_with_its_context(metrics: Metrics) -> None:
    api, rig = metrics.rig.api, metrics.rig
    ok(api.zet_context_activate_metric_groups(rig.context, rig.device, []))
    for _ in range(4):
        context = rig.new_context()
        ok(api.zet_context_activate_metric_groups(context, rig.device, metrics.groups))
        for group in metrics.groups[:2]:
            api.zet_metric_streamer_open(context, rig.device, group, _PERIOD).get()
        full = api.zet_metric_streamer_open(context, rig.device, metrics.groups[0], _PERIOD)
        assert full.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
        ok(api.ze_context_destroy(context))


def test_pools_and_streamers_refuse_the_groups_of_another_device(metrics: Metrics) -> None:
    rig = metrics.rig
    there = rig.devices[1]
    groups = rig.api.zet_metric_group_get(there).get()
    rig.api.zet_context_activate_metric_groups(rig.new_context(), there, groups)
    create, open_streamer = rig.api.zet_metric_query_pool_create, rig.api.zet_metric_streamer_open
    for group in groups:
        for refused in (
            create(rig.context, rig.device, group, 1),
            open_streamer(rig.context, rig.device, group, _PERIOD),
        ):
            assert refused.result == ZeResult.ERROR_INVALID_ARGUMENT
