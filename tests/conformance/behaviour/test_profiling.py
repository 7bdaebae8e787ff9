"""Profiling pools, queries and records (facts 3.6)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import profiles
from tests.conformance.api.enumerations import (
    GraphFlag,
    GraphProperty,
    LayerStatus,
    ProfilingType,
    TaskUnit,
)
from tests.conformance.api.structures import Handle
from tests.conformance.models import COUNT, Model
from tests.conformance.rig import Rig, ok

MINUTE_NS = 60_000_000_000


@dataclass
class Profiled:
    """A graph that is profiled, with its arguments set."""

    rig: Rig
    graph: Handle

    def pool(self, count: int = 1) -> Handle:
        return self.rig.api.ze_graph_profiling_pool_create(self.graph, count).get()

    def query(self) -> Handle:
        return self.rig.api.ze_graph_profiling_query_create(self.pool(), 0).get()

    def run(self, query: Handle) -> None:
        command_list = self.rig.command_list()
        ok(self.rig.api.ze_command_list_append_graph_execute(command_list, self.graph, query))
        self.rig.run(command_list)

    def data(self, query: Handle, kind: int) -> bytes:
        return self.rig.api.ze_graph_profiling_query_get_data(query, kind).get()


@pytest.fixture
def profiled(rig: Rig, model: Model) -> Profiled:
    graph = rig.graph(model, flags=GraphFlag.ENABLE_PROFILING)
    rig.bind(graph, *(rig.host(COUNT * 4) for _ in range(3)))
    return Profiled(rig, graph)


def test_profiling_extension_has_version_1_0(rig: Rig) -> None:
    assert rig.api.ze_device_get_profiling_data_properties(rig.device).get() == 1 << 16


def test_profiled_graph_says_so(profiled: Profiled) -> None:
    found = profiled.rig.api.ze_graph_get_properties3(profiled.graph).get()
    assert found.flags & GraphProperty.PROFILING_ENABLED


def test_graph_without_profiling_has_no_pool(rig: Rig, model: Model) -> None:
    made = rig.api.ze_graph_profiling_pool_create(rig.graph(model), 1)
    assert made.result == ZeResult.ERROR_NOT_AVAILABLE


def test_empty_pool_is_an_invalid_size(profiled: Profiled) -> None:
    made = profiled.rig.api.ze_graph_profiling_pool_create(profiled.graph, 0)
    assert made.result == ZeResult.ERROR_INVALID_SIZE


@pytest.mark.parametrize("index", [2, 100])
def test_index_out_of_range_is_an_invalid_argument(profiled: Profiled, index: int) -> None:
    made = profiled.rig.api.ze_graph_profiling_query_create(profiled.pool(2), index)
    assert made.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_used_index_is_in_use(profiled: Profiled) -> None:
    pool = profiled.pool(2)
    assert profiled.rig.api.ze_graph_profiling_query_create(pool, 1).get()
    made = profiled.rig.api.ze_graph_profiling_query_create(pool, 1)
    assert made.result == ZeResult.ERROR_HANDLE_OBJECT_IN_USE


def test_destroying_a_query_frees_its_index(profiled: Profiled) -> None:
    api, pool = profiled.rig.api, profiled.pool(1)
    ok(api.ze_graph_profiling_query_destroy(api.ze_graph_profiling_query_create(pool, 0).get()))
    assert api.ze_graph_profiling_query_create(pool, 0).get()


def test_pool_with_live_queries_is_in_use(profiled: Profiled) -> None:
    api, pool = profiled.rig.api, profiled.pool(1)
    query = api.ze_graph_profiling_query_create(pool, 0).get()
    assert api.ze_graph_profiling_pool_destroy(pool) == ZeResult.ERROR_HANDLE_OBJECT_IN_USE
    ok(api.ze_graph_profiling_query_destroy(query))
    ok(api.ze_graph_profiling_pool_destroy(pool))


def test_profiled_graph_needs_a_query(profiled: Profiled) -> None:
    rig = profiled.rig
    result = rig.api.ze_command_list_append_graph_execute(rig.command_list(), profiled.graph)
    assert result == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_layers_are_told_after_an_inference(profiled: Profiled) -> None:
    query = profiled.query()
    before = profiled.rig.api.ze_device_get_global_timestamps(profiled.rig.device).get().host
    profiled.run(query)
    found = profiles.layers(profiled.data(query, ProfilingType.LAYER))
    assert found
    for layer in found:
        assert layer.name
        assert layer.type
        assert layer.status in tuple(LayerStatus)
        assert layer.duration_ns < MINUTE_NS
    executed = [layer for layer in found if layer.status == LayerStatus.EXECUTED]
    assert executed
    assert all(abs(layer.start_ns - before) < MINUTE_NS for layer in executed)


def test_time_of_a_layer_is_split_over_the_units(profiled: Profiled) -> None:
    query = profiled.query()
    profiled.run(query)
    for layer in profiles.layers(profiled.data(query, ProfilingType.LAYER)):
        if layer.status == LayerStatus.EXECUTED and layer.duration_ns:
            assert layer.dpu_ns + layer.sw_ns + layer.dma_ns > 0


def test_tasks_are_told_after_an_inference(profiled: Profiled) -> None:
    query = profiled.query()
    profiled.run(query)
    found = profiles.tasks(profiled.data(query, ProfilingType.TASK))
    assert found
    assert len({task.task_id for task in found}) == len(found)
    for task in found:
        assert task.name
        assert task.unit in tuple(TaskUnit)
        assert task.duration_ns < MINUTE_NS


def test_raw_data_is_there_after_an_inference(profiled: Profiled) -> None:
    query = profiled.query()
    profiled.run(query)
    assert profiled.data(query, ProfilingType.RAW)


def test_query_tells_of_its_last_inference(profiled: Profiled) -> None:
    query = profiled.query()
    profiled.run(query)
    first = profiles.layers(profiled.data(query, ProfilingType.LAYER))
    profiled.run(query)
    second = profiles.layers(profiled.data(query, ProfilingType.LAYER))
    assert [layer.name for layer in first] == [layer.name for layer in second]
    assert max(layer.start_ns for layer in second) > max(layer.start_ns for layer in first)


def test_queries_of_one_list_are_filled_apart(profiled: Profiled) -> None:
    rig, pool = profiled.rig, profiled.pool(2)
    queries = [rig.api.ze_graph_profiling_query_create(pool, index).get() for index in range(2)]
    command_list = rig.command_list()
    for query in queries:
        ok(rig.api.ze_command_list_append_graph_execute(command_list, profiled.graph, query))
        ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.run(command_list)
    starts = [
        min(layer.start_ns for layer in profiles.layers(profiled.data(query, ProfilingType.LAYER)))
        for query in queries
    ]
    assert starts[0] < starts[1]


def test_null_handles_are_refused(profiled: Profiled) -> None:
    api, null = profiled.rig.api, ZeResult.ERROR_INVALID_NULL_HANDLE
    assert api.ze_graph_profiling_pool_create(None, 1).result == null
    assert api.ze_graph_profiling_pool_destroy(None) == null
    assert api.ze_graph_profiling_query_create(None, 0).result == null
    assert api.ze_graph_profiling_query_destroy(None) == null
    assert api.ze_graph_profiling_query_get_data(None, ProfilingType.LAYER).result == null
