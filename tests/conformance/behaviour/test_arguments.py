"""Tests that every call refuses null handles, null pointers and destroyed objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import (
    GraphFlag,
    MemoryQuery,
    MutableFlag,
    OptionType,
    ProfilingType,
    WorkloadType,
)
from tests.conformance.api.structures import (
    CommandListDesc,
    CommandQueueDesc,
    ContextDesc,
    DeviceMemDesc,
    EventDesc,
    EventPoolDesc,
    FenceDesc,
    HostMemDesc,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
)
from tests.conformance.models import Model
from tests.conformance.rig import Rig, ok

pytestmark = pytest.mark.quick

STALE = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_ARGUMENT)

# Valid arguments of each call, for an `o` with an object of each kind. H marks a non-null handle, P a
# non-null pointer; arguments marked by a dot have other rules. A parameter `out` is tried as well.
CORE = {
    "ze_driver_get_api_version": ("H", lambda o: [o.driver]),
    "ze_driver_get_properties": ("H", lambda o: [o.driver]),
    "ze_driver_get_extension_function_address": ("HP", lambda o: [o.driver, "ZE_extension_graph"]),
    "ze_device_get": ("H", lambda o: [o.driver]),
    "ze_device_get_properties": ("H", lambda o: [o.device]),
    "ze_device_get_status": ("H", lambda o: [o.device]),
    "ze_device_get_global_timestamps": ("H", lambda o: [o.device]),
    "ze_device_get_runtime_requirements": ("HH", lambda o: [o.device, o.graph]),
    "ze_device_get_runtime_requirements_key": ("H", lambda o: [o.device]),
    "ze_device_validate_runtime_requirements": ("H.", lambda o: [o.device, "softnpu"]),
    "ze_context_create": ("HP", lambda o: [o.driver, ContextDesc()]),
    "ze_context_destroy": ("H", lambda o: [o.context]),
    "ze_context_get_status": ("H", lambda o: [o.context]),
    "ze_mem_alloc_host": ("HP", lambda o: [o.context, HostMemDesc(), 64]),
    "ze_mem_alloc_device": ("HP", lambda o: [o.context, DeviceMemDesc(), 64, 0, o.device]),
    "ze_mem_alloc_shared": ("HPP", lambda o: [o.context, DeviceMemDesc(), HostMemDesc(), 64, 0, o.device]),
    "ze_mem_free": ("H", lambda o: [o.context, o.memory]),
    "ze_mem_get_alloc_properties": ("HP", lambda o: [o.context, o.memory]),
    "ze_mem_get_address_range": ("HP", lambda o: [o.context, o.memory]),
}
COMMANDS = {
    "ze_command_queue_create": ("HHP", lambda o: [o.context, o.device, CommandQueueDesc()]),
    "ze_command_queue_destroy": ("H", lambda o: [o.queue]),
    "ze_command_queue_execute_command_lists": ("H.P", lambda o: [o.queue, 1, [o.closed]]),
    "ze_command_queue_synchronize": ("H", lambda o: [o.queue, 0]),
    "ze_command_queue_set_workload_type": ("H", lambda o: [o.queue, WorkloadType.DEFAULT]),
    "ze_command_list_create": ("HHP", lambda o: [o.context, o.device, CommandListDesc()]),
    "ze_command_list_create_immediate": ("HHP", lambda o: [o.context, o.device, CommandQueueDesc()]),
    "ze_command_list_destroy": ("H", lambda o: [o.list]),
    "ze_command_list_close": ("H", lambda o: [o.list]),
    "ze_command_list_reset": ("H", lambda o: [o.list]),
    "ze_command_list_host_synchronize": ("H", lambda o: [o.list, 0]),
    "ze_command_list_get_next_command_id_exp": (
        "HP",
        lambda o: [o.mutable, MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)],
    ),
    "ze_command_list_update_mutable_commands_exp": (
        "HP",
        lambda o: [o.mutable, MutableCommandsDesc((MutableGraphArgument(0, 0, o.memory),))],
    ),
    "ze_command_list_append_barrier": ("H", lambda o: [o.list]),
    "ze_command_list_append_memory_copy": ("HPP", lambda o: [o.list, o.memory, o.memory, 8]),
    "ze_command_list_append_memory_fill": ("HPP", lambda o: [o.list, o.memory, b"\1", 8]),
    "ze_command_list_append_write_global_timestamp": ("HP", lambda o: [o.list, o.memory]),
    "ze_command_list_append_signal_event": ("HH", lambda o: [o.list, o.event]),
    "ze_command_list_append_event_reset": ("HH", lambda o: [o.list, o.event]),
    "ze_command_list_append_wait_on_events": ("H.P", lambda o: [o.list, 1, [o.event]]),
    "ze_fence_create": ("HP", lambda o: [o.queue, FenceDesc()]),
    "ze_fence_destroy": ("H", lambda o: [o.fence]),
    "ze_fence_host_synchronize": ("H", lambda o: [o.fence, 0]),
    "ze_fence_query_status": ("H", lambda o: [o.fence]),
    "ze_fence_reset": ("H", lambda o: [o.fence]),
    "ze_event_pool_create": ("HP", lambda o: [o.context, EventPoolDesc(1), 0, None]),
    "ze_event_pool_destroy": ("H", lambda o: [o.pool]),
    "ze_event_create": ("HP", lambda o: [o.pool, EventDesc(0)]),
    "ze_event_destroy": ("H", lambda o: [o.event]),
    "ze_event_host_signal": ("H", lambda o: [o.event]),
    "ze_event_host_reset": ("H", lambda o: [o.event]),
    "ze_event_query_status": ("H", lambda o: [o.event]),
    "ze_event_host_synchronize": ("H", lambda o: [o.event, 0]),
}
GRAPHS = {
    "ze_graph_create": ("HHP", lambda o: [o.context, o.device, o.desc]),
    "ze_graph_create2": ("HHP", lambda o: [o.context, o.device, o.desc]),
    "ze_graph_create3": ("HHP", lambda o: [o.context, o.device, o.desc]),
    "ze_graph_destroy": ("H", lambda o: [o.graph]),
    "ze_graph_initialize": ("H", lambda o: [o.graph]),
    "ze_graph_evict": ("H", lambda o: [o.graph]),
    "ze_graph_get_properties": ("H", lambda o: [o.graph]),
    "ze_graph_get_properties2": ("H", lambda o: [o.graph]),
    "ze_graph_get_properties3": ("H", lambda o: [o.graph]),
    "ze_graph_get_argument_properties": ("H", lambda o: [o.graph, 0]),
    "ze_graph_get_argument_properties2": ("H", lambda o: [o.graph, 0]),
    "ze_graph_get_argument_properties3": ("H", lambda o: [o.graph, 0]),
    "ze_graph_get_argument_metadata": ("H", lambda o: [o.graph, 0]),
    "ze_graph_get_native_binary": ("H", lambda o: [o.graph]),
    "ze_graph_set_argument_value": ("H.P", lambda o: [o.graph, 0, o.memory]),
    "ze_graph_build_log_get_string2": ("H", lambda _: [None]),
    "ze_graph_build_log_destroy": ("H", lambda _: [None]),
    "ze_graph_query_network_create2": ("HHP", lambda o: [o.context, o.device, o.desc]),
    "ze_graph_query_network_destroy": ("H", lambda _: [None]),
    "ze_graph_query_network_get_supported_layers": ("H", lambda o: [o.query]),
    "ze_graph_query_context_memory": ("H", lambda o: [o.context, MemoryQuery.DDR]),
    "ze_graph_compiler_get_supported_options": ("H", lambda o: [o.device, OptionType.COMPILER]),
    "ze_command_list_append_graph_execute": ("HH", lambda o: [o.list, o.graph]),
    "ze_graph_profiling_pool_create": ("H", lambda o: [o.graph, 1]),
    "ze_graph_profiling_pool_destroy": ("H", lambda _: [None]),
    "ze_graph_profiling_query_create": ("H", lambda o: [o.profiling, 0]),
    "ze_graph_profiling_query_destroy": ("H", lambda _: [None]),
    "ze_graph_profiling_query_get_data": ("H", lambda _: [None, ProfilingType.LAYER]),
}
Table = dict[str, tuple[str, Callable[[Any], list[Any]]]]


@pytest.fixture
def objects(rig: Rig, model: Model) -> SimpleNamespace:
    """Return a live object of each kind."""
    queue, desc = rig.queue(), rig.model_desc(model)
    graph = rig.graph(model, flags=GraphFlag.ENABLE_PROFILING)
    return SimpleNamespace(
        driver=rig.driver,
        device=rig.device,
        context=rig.context,
        memory=rig.host(64),
        queue=queue,
        fence=rig.fence(queue),
        list=rig.command_list(),
        closed=rig.recorded(),
        mutable=rig.command_list(mutable=True),
        pool=rig.pool(1),
        event=rig.event(),
        graph=graph,
        profiling=rig.api.ze_graph_profiling_pool_create(graph, 1).get(),
        desc=desc,
        query=rig.api.ze_graph_query_network_create2(rig.context, rig.device, desc).get(),
    )


def result_of(answer: Any) -> ZeResult:
    """Return the result of any call: itself, or the first of its outputs."""
    return answer if isinstance(answer, ZeResult) else answer[0]


def wrong_calls(rig: Rig, table: Table, objects: SimpleNamespace) -> Iterator[tuple[str, ZeResult, ZeResult]]:
    """Yield each call with one null in turn: its description, result and expected result."""
    for name, (kinds, arguments) in table.items():
        call, valid = getattr(rig.api, name), arguments(objects)
        for index, kind in enumerate(kinds):
            if kind == ".":
                continue
            null = 0 if kind == "P" and isinstance(valid[index], int) else None
            result = result_of(call(*valid[:index], null, *valid[index + 1 :]))
            expected = (
                ZeResult.ERROR_INVALID_NULL_HANDLE if kind == "H" else ZeResult.ERROR_INVALID_NULL_POINTER
            )
            yield f"{name}, argument {index}", result, expected
        if "out" in inspect.signature(call).parameters:
            yield f"{name}, output", result_of(call(*valid, out=False)), ZeResult.ERROR_INVALID_NULL_POINTER


@pytest.mark.parametrize("table", [CORE, COMMANDS, GRAPHS], ids=["core", "commands", "graphs"])
def test_null_handles_and_pointers_are_refused(rig: Rig, table: Table, objects: SimpleNamespace) -> None:
    wrong = [entry for entry in wrong_calls(rig, table, objects) if entry[1] != entry[2]]
    assert wrong == []


# ---------------------------------------------------------------- destroyed objects

DESTROYED: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "context": ("ze_context", [("ze_context_get_status",)]),
    "queue": ("ze_command_queue", [("ze_command_queue_synchronize", 0)]),
    "list": ("ze_command_list", [("ze_command_list_reset",), ("ze_command_list_append_barrier",)]),
    "fence": (
        "ze_fence",
        [("ze_fence_query_status",), ("ze_fence_host_synchronize", 0), ("ze_fence_reset",)],
    ),
    "event": ("ze_event", [("ze_event_query_status",), ("ze_event_host_signal",)]),
    "graph": ("ze_graph", [("ze_graph_initialize",), ("ze_graph_get_properties",)]),
}


@pytest.mark.parametrize("kind", DESTROYED)
def test_destroyed_object_is_refused(rig: Rig, objects: SimpleNamespace, kind: str) -> None:
    prefix, uses = DESTROYED[kind]
    entry = rig.new_context() if kind == "context" else getattr(objects, kind)
    ok(getattr(rig.api, f"{prefix}_destroy")(entry))
    found = {name: result_of(getattr(rig.api, name)(entry, *more)) for name, *more in uses}
    found["again"] = getattr(rig.api, f"{prefix}_destroy")(entry)
    assert {name: result for name, result in found.items() if result not in STALE} == {}


def test_destroyed_lists_and_queues_are_not_executed(rig: Rig, objects: SimpleNamespace) -> None:
    execute = rig.api.ze_command_queue_execute_command_lists
    ok(rig.api.ze_command_list_destroy(objects.list))
    assert execute(objects.queue, 1, [objects.list]) in STALE
    ok(rig.api.ze_command_queue_destroy(objects.queue))
    assert execute(objects.queue, 1, [objects.closed]) in STALE
