"""Created and destroyed objects leave no trace in the daemon, or in the memory query."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import GraphFlag
from tests.conformance.api.structures import EventDesc, Handle
from tests.conformance.commands import barrier, fill
from tests.conformance.holdings import Counts, Holdings
from tests.conformance.models import Model
from tests.conformance.rig import Rig, ok

TIMES = 200
"""More than any free list keeps, so that a leak shows."""


def in_use(rig: Rig, holdings: Holdings) -> tuple[int, Counts]:
    """Return bytes, then objects: a context may be created on its device only on use, as by the query."""
    return rig.memory_in_use(), holdings.count()


def cycle_queue(rig: Rig) -> Handle:
    queue = rig.queue()
    ok(rig.api.ze_fence_destroy(rig.fence(queue)))
    ok(rig.api.ze_command_queue_destroy(queue))
    return queue


def cycle_context(rig: Rig) -> Handle:
    context = rig.new_context()
    ok(rig.api.ze_context_destroy(context))
    return context


def cycle_lists(rig: Rig) -> Handle:
    made = [rig.recorded(barrier()), rig.recorded(barrier(), mutable=True), rig.immediate()]
    for command_list in made:
        ok(rig.api.ze_command_list_destroy(command_list))
    return made


def cycle_pool(rig: Rig) -> Handle:
    pool = rig.pool(4)
    event = rig.api.ze_event_create(pool, EventDesc(3)).get()
    assert rig.api.ze_event_create(pool, EventDesc(3)).result == ZeResult.ERROR_INVALID_ARGUMENT
    ok(rig.api.ze_event_destroy(event))
    ok(rig.api.ze_event_pool_destroy(pool))
    return pool, event


def cycle_memory(rig: Rig) -> Handle:
    pointers = [rig.of_kind(kind, 100) for kind in ("host", "device", "shared")]
    for pointer in pointers:
        ok(rig.api.ze_mem_free(rig.context, pointer))
    return pointers


CYCLES = (cycle_queue, cycle_context, cycle_lists, cycle_pool, cycle_memory)


@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__.removeprefix("cycle_"))
def test_created_and_destroyed_objects_are_gone(
    rig: Rig, holdings: Holdings, cycle: Callable[[Rig], Handle]
) -> None:
    # a C program still has the handles of destroyed objects: they must not keep anything alive
    kept = [cycle(rig)]
    before = in_use(rig, holdings)
    for _ in range(TIMES):
        kept.append(cycle(rig))
    assert in_use(rig, holdings) == before


def test_created_and_destroyed_graphs_are_gone(rig: Rig, holdings: Holdings, model: Model) -> None:
    def cycle() -> None:
        graph = rig.graph(model, flags=GraphFlag.ENABLE_PROFILING)
        pool = rig.api.ze_graph_profiling_pool_create(graph, 1).get()
        ok(rig.api.ze_graph_profiling_pool_destroy(pool))
        ok(rig.api.ze_graph_destroy(graph))

    cycle()
    before = in_use(rig, holdings)
    for _ in range(5):
        cycle()
    assert in_use(rig, holdings) == before


def test_resetting_and_recording_a_list_uses_no_more_each_time(rig: Rig) -> None:
    command_list, queue, memory = rig.command_list(), rig.queue(), rig.host(64)

    def cycle() -> None:
        rig.append(command_list, fill(memory, b"\x01", 64))
        rig.run(command_list, queue=queue)
        ok(rig.api.ze_command_list_reset(command_list))

    for _ in range(3):
        cycle()
    before = rig.memory_in_use()
    for _ in range(TIMES):
        cycle()
    assert rig.memory_in_use() == before
