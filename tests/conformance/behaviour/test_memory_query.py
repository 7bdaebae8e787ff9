"""The context memory query counts bytes exactly (facts 3.3)."""

from __future__ import annotations

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import MemoryQuery
from tests.conformance.commands import barrier, infer
from tests.conformance.models import SIZE, Model
from tests.conformance.rig import Rig


def test_size_is_not_rounded_to_pages(rig: Rig) -> None:
    context, other = rig.new_context(), rig.new_context()
    assert rig.memory_in_use(context) == 0
    rig.host(48 * 1024, context)
    assert rig.memory_in_use(context) == 48 * 1024
    rig.host(20000, context)
    assert rig.memory_in_use(context) == 48 * 1024 + 20000
    assert rig.memory_in_use(other) == 0


def test_command_buffer_of_a_closed_list_counts(rig: Rig) -> None:
    context = rig.new_context()
    rig.host(48 * 1024, context)
    rig.recorded(barrier(), context=context)
    assert rig.memory_in_use(context) > 48 * 1024


def test_total_is_the_memory_of_the_device(rig: Rig) -> None:
    found = rig.api.ze_graph_query_context_memory(rig.context, MemoryQuery.DDR).get()
    limit = rig.api.ze_device_get_properties(rig.device).get().max_mem_alloc_size
    assert found.total == limit
    assert found.allocated < found.total


def test_repeated_inference_does_not_use_more(rig: Rig, model: Model) -> None:
    graph, queue = rig.graph(model), rig.queue()
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    command_list, fence, used = rig.recorded(infer(graph)), rig.fence(queue), []
    for _ in range(20):
        rig.submit(queue, command_list, fence=fence)
        rig.finish(queue)
        used.append(rig.memory_in_use())
    assert used == [used[0]] * 20


def test_cache_queries_answer_and_unknown_ones_are_invalid_arguments(rig: Rig) -> None:
    ask = rig.api.ze_graph_query_context_memory
    for kind in (MemoryQuery.DRIVER_CACHE, MemoryQuery.PROGRAM_CACHE):
        assert ask(rig.context, kind).get().allocated >= 0
    for unknown in (0, 4, 99):
        assert ask(rig.context, unknown).result == ZeResult.ERROR_INVALID_ARGUMENT
