"""The context memory query counts bytes exactly (facts 3.3)."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import MemoryQuery
from tests.conformance.models import COUNT, Model
from tests.conformance.rig import Rig, ok


def test_fresh_context_uses_nothing(rig: Rig) -> None:
    assert rig.memory_in_use(rig.new_context()) == 0


def test_one_allocation_is_counted_to_the_byte(rig: Rig) -> None:
    context = rig.new_context()
    rig.host(48 * 1024, context)
    assert rig.memory_in_use(context) == 48 * 1024


def test_size_is_not_rounded_to_pages(rig: Rig) -> None:
    context = rig.new_context()
    rig.host(48 * 1024, context)
    rig.host(20000, context)
    assert rig.memory_in_use(context) == 48 * 1024 + 20000


def test_command_buffer_of_a_closed_list_counts(rig: Rig) -> None:
    context = rig.new_context()
    rig.host(48 * 1024, context)
    command_list = rig.command_list(context)
    ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.close(command_list)
    assert rig.memory_in_use(context) > 48 * 1024


def test_contexts_are_counted_apart(rig: Rig) -> None:
    first, second = rig.new_context(), rig.new_context()
    rig.host(1000, first)
    assert rig.memory_in_use(second) == 0


def test_total_is_the_memory_of_the_device(rig: Rig) -> None:
    found = rig.api.ze_graph_query_context_memory(rig.context, MemoryQuery.DDR).get()
    limit = rig.api.ze_device_get_properties(rig.device).get().max_mem_alloc_size
    assert found.total == limit
    assert found.allocated < found.total


def test_repeated_inference_does_not_use_more(rig: Rig, model: Model) -> None:
    graph, queue = rig.graph(model), rig.queue()
    rig.bind(graph, *(rig.host(COUNT * 4) for _ in range(3)))
    command_list = rig.command_list()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    fence = rig.fence(queue)
    rig.submit(queue, command_list, fence=fence)
    rig.finish(queue)
    before = rig.memory_in_use()
    for _ in range(20):
        rig.submit(queue, command_list, fence=fence)
        rig.finish(queue)
    assert rig.memory_in_use() == before


@pytest.mark.parametrize("kind", [MemoryQuery.DRIVER_CACHE, MemoryQuery.PROGRAM_CACHE])
def test_cache_queries_answer(rig: Rig, kind: int) -> None:
    found = rig.api.ze_graph_query_context_memory(rig.context, kind).get()
    assert found.allocated >= 0


@pytest.mark.parametrize("kind", [0, 4, 99])
def test_unknown_query_is_an_invalid_argument(rig: Rig, kind: int) -> None:
    found = rig.api.ze_graph_query_context_memory(rig.context, kind)
    assert found.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_null_context_is_refused(rig: Rig) -> None:
    found = rig.api.ze_graph_query_context_memory(None, MemoryQuery.DDR)
    assert found.result == ZeResult.ERROR_INVALID_NULL_HANDLE
