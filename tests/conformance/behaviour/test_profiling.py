"""Profiling pools, queries and records."""

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
from tests.conformance.commands import barrier, infer
from tests.conformance.models import SIZE, Model
from tests.conformance.rig import Rig, ok

MINUTE_NS = 60_000_000_000


@dataclass
class Profiled:
    """A profiled graph, with its arguments set."""

    rig: Rig
    graph: Handle

    def pool(self, count: int = 1) -> Handle:
        return self.rig.api.ze_graph_profiling_pool_create(self.graph, count).get()

    def query(self) -> Handle:
        return self.rig.api.ze_graph_profiling_query_create(self.pool(), 0).get()

    def data(self, query: Handle, kind: int) -> bytes:
        return self.rig.api.ze_graph_profiling_query_get_data(query, kind).get()

    def layers(self, query: Handle) -> list[profiles.LayerRecord]:
        return profiles.layers(self.data(query, ProfilingType.LAYER))


@pytest.fixture
def profiled(rig: Rig, model: Model) -> Profiled:
    graph = rig.graph(model, flags=GraphFlag.ENABLE_PROFILING)
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    return Profiled(rig, graph)


def test_profiling_is_reported_and_only_where_it_was_asked_for(
    rig: Rig, profiled: Profiled, model: Model
) -> None:
    assert rig.api.ze_device_get_profiling_data_properties(rig.device).get() == 1 << 16
    plain = rig.graph(model)
    for graph, expected in ((profiled.graph, GraphProperty.PROFILING_ENABLED), (plain, 0)):
        flags = rig.api.ze_graph_get_properties3(graph).get().flags
        assert flags & GraphProperty.PROFILING_ENABLED == expected
    made = rig.api.ze_graph_profiling_pool_create(plain, 1)
    assert made.result == ZeResult.ERROR_NOT_AVAILABLE


def test_wrong_pools_and_queries_are_refused(rig: Rig, profiled: Profiled) -> None:
    empty = rig.api.ze_graph_profiling_pool_create(profiled.graph, 0)
    assert empty.result == ZeResult.ERROR_INVALID_SIZE
    for index in (2, 100):
        made = rig.api.ze_graph_profiling_query_create(profiled.pool(2), index)
        assert made.result == ZeResult.ERROR_INVALID_ARGUMENT
    no_query = infer(profiled.graph)(rig.api, rig.command_list())
    assert no_query == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_index_and_pool_are_in_use_until_the_query_is_destroyed(profiled: Profiled) -> None:
    api, pool = profiled.rig.api, profiled.pool(2)
    for _ in range(2):
        query = api.ze_graph_profiling_query_create(pool, 1).get()
        made = api.ze_graph_profiling_query_create(pool, 1)
        assert made.result == ZeResult.ERROR_HANDLE_OBJECT_IN_USE
        assert api.ze_graph_profiling_pool_destroy(pool) == ZeResult.ERROR_HANDLE_OBJECT_IN_USE
        ok(api.ze_graph_profiling_query_destroy(query))
    ok(api.ze_graph_profiling_pool_destroy(pool))


def test_layers_are_reported_after_an_inference(rig: Rig, profiled: Profiled) -> None:
    query = profiled.query()
    before = rig.api.ze_device_get_global_timestamps(rig.device).get().host
    rig.execute(infer(profiled.graph, query))
    found = profiled.layers(query)
    for layer in found:
        assert layer.name
        assert layer.type
        assert layer.status in tuple(LayerStatus)
        assert layer.duration_ns < MINUTE_NS
    executed = [layer for layer in found if layer.status == LayerStatus.EXECUTED]
    assert executed
    for layer in executed:
        assert abs(layer.start_ns - before) < MINUTE_NS
        assert not layer.duration_ns or layer.dpu_ns + layer.sw_ns + layer.dma_ns > 0


def test_tasks_and_raw_data_are_reported_after_an_inference(profiled: Profiled) -> None:
    query = profiled.query()
    profiled.rig.execute(infer(profiled.graph, query))
    found = profiles.tasks(profiled.data(query, ProfilingType.TASK))
    assert found
    assert len({task.task_id for task in found}) == len(found)
    for task in found:
        assert task.name
        assert task.unit in tuple(TaskUnit)
        assert task.duration_ns < MINUTE_NS
    assert profiled.data(query, ProfilingType.RAW)


def test_query_reports_its_last_inference(profiled: Profiled) -> None:
    query, found = profiled.query(), []
    for _ in range(2):
        profiled.rig.execute(infer(profiled.graph, query))
        found.append(profiled.layers(query))
    first, second = found
    assert [layer.name for layer in first] == [layer.name for layer in second]
    assert max(layer.start_ns for layer in second) > max(layer.start_ns for layer in first)


def test_queries_of_one_list_are_filled_apart(rig: Rig, profiled: Profiled) -> None:
    pool, command_list = profiled.pool(2), rig.command_list()
    queries = [rig.api.ze_graph_profiling_query_create(pool, index).get() for index in range(2)]
    for query in queries:
        rig.append(command_list, infer(profiled.graph, query), barrier())
    rig.run(command_list)
    first, second = [min(layer.start_ns for layer in profiled.layers(query)) for query in queries]
    assert first < second
