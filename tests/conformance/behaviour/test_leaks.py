"""Created and destroyed objects leave no trace: in the daemon, in the memory query, in any process.

A short run in every suite; ten thousand cycles of each kind with `-m soak`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import mmap
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ExternalMemory, GraphFlag, MutableFlag, ProfilingType
from tests.conformance.api.structures import (
    DeviceMemDesc,
    EventDesc,
    Handle,
    HostMemDesc,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
    native,
)
from tests.conformance.commands import barrier, fill, infer, signal
from tests.conformance.drivers import OpenDriver
from tests.conformance.holdings import Counts, Holdings
from tests.conformance.models import SIZE, weighted_sum
from tests.conformance.rig import DEADLINE, Rig, ok
from tests.support.leaks import base_descriptors_of, descriptors_of
from tests.support.waiting import wait_until

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


# ---------------------------------------------------------------- descriptors, mappings and heaps

_SOAK, _BATCHES = 10_000, 8
# Descriptors, mapped memory files, handles and objects are counted exactly. A heap moves by a page per batch
# even without a leak, and OpenVINO's settles only after some hundred loads.
_UNSETTLED, _BYTES_PER_CYCLE, _OBJECTS = 64 << 10, 16, 20


def export(rig: Rig) -> None:
    api, desc = rig.api, DeviceMemDesc(export=ExternalMemory.DMA_BUF)
    memory = api.ze_mem_alloc_device(rig.context, desc, 5000, 4096, rig.device).get()
    found = api.ze_mem_get_alloc_properties(rig.context, memory, export=ExternalMemory.DMA_BUF).get()
    imported = api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=found.fd), 5000).get()
    os.close(found.fd)
    api.write(memory, b"\x07")
    assert api.read(imported, 1) == b"\x07"
    for pointer in (imported, memory):
        ok(api.ze_mem_free(rig.context, pointer))


def work(rig: Rig) -> None:
    queue, pool, target = rig.queue(), rig.pool(100), rig.host(64)
    fence, event = rig.fence(queue), rig.api.ze_event_create(pool, EventDesc(99)).get()
    command_list = rig.recorded(fill(target, b"\x05", 64), signal(event))
    rig.submit(queue, command_list, fence=fence)
    ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))
    immediate = rig.immediate()
    rig.append(immediate, fill(target, b"\x06", 64))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    for gone in (command_list, immediate):
        ok(rig.api.ze_command_list_destroy(gone))
    ok(rig.api.ze_event_destroy(event))
    ok(rig.api.ze_event_pool_destroy(pool))
    ok(rig.api.ze_fence_destroy(fence))
    ok(rig.api.ze_command_queue_destroy(queue))
    ok(rig.api.ze_mem_free(rig.context, target))


def profiled_graph(rig: Rig) -> None:
    """Load, run with changed arguments, and unload: no other graph has this model."""
    api, graph = rig.api, rig.graph(weighted_sum(), flags=GraphFlag.ENABLE_PROFILING)
    pool = api.ze_graph_profiling_pool_create(graph, 4).get()
    query = api.ze_graph_profiling_query_create(pool, 3).get()
    memory, command_list, queue = (
        [rig.host(SIZE) for _ in range(4)],
        rig.command_list(mutable=True),
        rig.queue(),
    )
    rig.bind(graph, *memory[:3])
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    number = api.ze_command_list_get_next_command_id_exp(command_list, desc).get()
    rig.append(command_list, infer(graph, query))
    rig.close(command_list)
    change = MutableCommandsDesc((MutableGraphArgument(number, 2, memory[3]),))
    ok(api.ze_command_list_update_mutable_commands_exp(command_list, change))
    rig.run(command_list, queue=queue)
    assert api.ze_graph_profiling_query_get_data(query, ProfilingType.LAYER).get()
    ok(api.ze_graph_profiling_query_destroy(query))
    ok(api.ze_graph_profiling_pool_destroy(pool))
    ok(api.ze_command_list_destroy(command_list))
    ok(api.ze_command_queue_destroy(queue))
    ok(api.ze_graph_destroy(graph))
    for pointer in memory:
        ok(api.ze_mem_free(rig.context, pointer))


def native_binary(rig: Rig) -> None:
    graph = rig.graph(weighted_sum())
    blob = rig.api.ze_graph_get_native_binary(graph).get()
    result, outcome = rig.api.ze_graph_create3(rig.context, rig.device, native(blob))
    ok(result)
    ok(rig.api.ze_graph_build_log_destroy(outcome.log))
    for made in (outcome.graph, graph):
        ok(rig.api.ze_graph_destroy(made))


def query_network(rig: Rig) -> None:
    query = rig.api.ze_graph_query_network_create2(
        rig.context, rig.device, rig.model_desc(weighted_sum())
    ).get()
    assert rig.api.ze_graph_query_network_get_supported_layers(query).get().startswith("<")
    ok(rig.api.ze_graph_query_network_destroy(query))


def census(holdings: Holdings) -> dict[str, int]:
    """Exact counts: by the daemon, by process, in this heap."""
    gc.collect()
    status = holdings.status()
    engine = status.engines[0]
    counts = {"sessions": status.session_count, "images": engine.images, "device memory": engine.memory_used}
    counts |= dataclasses.asdict(holdings.count())
    for name, pid in processes(holdings).items():
        counts[f"descriptors of the {name}"] = descriptors_of(pid)
        counts[f"memory files mapped by the {name}"] = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
    counts["descriptors of the supervisor"] = base_descriptors_of(status.pid)
    counts["Python objects of the client"] = len(gc.get_objects())
    return counts


def processes(holdings: Holdings) -> dict[str, int]:
    """Process ids. Compiler workers come and go."""
    status = holdings.status()
    return {"client": os.getpid(), "supervisor": status.pid, "engine": status.engines[0].engine_pid}


def heap(pid: int) -> int:
    """Bytes of anonymous memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nAnonymous:")[2].split()[0]) * 1024


def growth(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Return what has grown, by name."""
    free = {"Python objects of the client": _OBJECTS}
    more = {name: now[name] - count for name, count in before.items()}
    return [f"{count:+} {name}" for name, count in more.items() if count > free.get(name, 0)]


def leaks(
    rig: Rig, holdings: Holdings, cycle: Callable[[Rig], object], cycles: int, settle_s: float = 10.0
) -> str:
    """Run `cycle` until caches are warm, then `cycles` times under observation; return what has grown."""
    batch = max(1, cycles // _BATCHES)
    for _ in range(2 * batch):
        cycle(rig)
    pids, before = processes(holdings), census(holdings)
    sizes = {name: [heap(pid)] for name, pid in pids.items()}
    for _ in range(_BATCHES):
        for _ in range(batch):
            cycle(rig)
        gc.collect()
        for name, pid in pids.items():
            sizes[name].append(heap(pid))
    with contextlib.suppress(AssertionError):
        # the engine unloads an image shortly after acknowledging the destruction of its last graph
        wait_until(lambda: not growth(before, census(holdings)), settle_s)
    allowed = (mmap.PAGESIZE if batch >= 10 else _UNSETTLED) / batch + _BYTES_PER_CYCLE
    found = growth(before, census(holdings))
    for name, values in sizes.items():
        # the median of the batches: a heap that grows once, by some MiB, is not a leak
        slope = statistics.median(after - now for now, after in itertools.pairwise(values)) / batch
        if slope > allowed:
            found.append(f"{slope:.0f} bytes a cycle in the {name}")
    return "; ".join(found)


CYCLES_OF: dict[Callable[[Rig], object], int] = {
    cycle_queue: 160, cycle_context: 80, cycle_lists: 80, cycle_pool: 160, cycle_memory: 80, export: 80,
    work: 80, profiled_graph: 8, native_binary: 8, query_network: 8,
}  # fmt: skip
"""Cycles by kind, and how many of them a short run can afford."""


@pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("cycle", CYCLES_OF, ids=lambda cycle: cycle.__name__.removeprefix("cycle_"))
def test_nothing_grows(
    cached: tuple[Rig, Path], holdings: Holdings, cycle: Callable[[Rig], object], long: bool
) -> None:
    assert not leaks(cached[0], holdings, cycle, _SOAK if long else CYCLES_OF[cycle])


def test_sessions_and_what_they_own_leave_nothing(
    rig: Rig, holdings: Holdings, driver: OpenDriver, place: Path
) -> None:
    def session(_: Rig) -> None:
        api = driver(place)
        Rig(api).check_works()
        api.close()

    assert not leaks(rig, holdings, session, 24)


def test_the_check_detects_leaks(rig: Rig, holdings: Holdings) -> None:
    kept: list[Any] = []

    def keep_much(rig: Rig) -> None:
        """Leak device memory, a descriptor, and bytes."""
        # whole pages: heap bytes may fit into holes left by an earlier test of this process
        pages = mmap.mmap(-1, 16384, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.write(bytes(range(256)) * 64)
        rig.host(64)
        kept.extend([open("/dev/null", "rb"), pages])  # noqa: SIM115

    found = leaks(rig, holdings, keep_much, 80, settle_s=0.0)
    for told in ("+80 allocations", "+80 descriptors of the client", "bytes a cycle in the client"):
        assert told in found
    for thing in kept:
        thing.close()
