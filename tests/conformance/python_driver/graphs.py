"""The graph and profiling extensions of the Python driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from softnpu.driver import Context, Graph
from softnpu.driver.build_log import BuildLog
from softnpu.driver.command_list import CommandList
from softnpu.driver.device import Device
from softnpu.driver.errors import ZeError, error
from softnpu.driver.graph_creation import GraphDesc as DriverGraphDesc
from softnpu.driver.graph_extension import GraphExtension
from softnpu.driver.graph_properties import ArgumentProperties3
from softnpu.driver.profiling import ProfilingPool, ProfilingQuery, ProfilingType
from softnpu.driver.query_network import QueryNetwork
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import (
    ArgumentMetadata,
    ArgumentProperties,
    DeviceGraphProperties,
    DeviceGraphProperties2,
    GraphDesc,
    GraphOutcome,
    GraphProperties,
    Handle,
    MemoryUse,
    Pointer,
    StridesValue,
    TensorValue,
)
from tests.conformance.python_driver.results import (
    Keeper,
    answers,
    convert,
    creation,
    destruction,
    events_of,
    given,
    live,
    method,
    results,
    told,
)


class PythonGraphs(Keeper):
    """Graphs: from a model to an inference and its profile."""

    # ------------------------------------------------------------ device and options

    @answers
    def ze_device_get_graph_properties(self, device: Handle, out: bool = True) -> DeviceGraphProperties:
        this = live(device, Device)
        given(out)
        properties = GraphExtension(this).device_get_graph_properties()
        return DeviceGraphProperties(
            properties.graph_extension_version,
            *properties.compiler_version,
            properties.graph_formats_supported,
            properties.max_ov_opset_version_supported,
        )

    ze_device_get_graph_properties2 = told(
        Device,
        lambda this: convert(DeviceGraphProperties2, GraphExtension(this).device_get_graph_properties()),
    )

    @answers
    def ze_graph_compiler_get_supported_options(self, device: Handle, kind: int) -> str:
        return GraphExtension(live(device, Device)).compiler_get_supported_options(kind)

    @results
    def ze_graph_compiler_is_option_supported(
        self, device: Handle, kind: int, name: str | None, value: str | None = None
    ) -> None:
        GraphExtension(live(device, Device)).compiler_is_option_supported(kind, name, value)

    # ------------------------------------------------------------ life of a graph

    ze_graph_create = creation(
        [Context, Device], lambda context, device, desc: GraphExtension(device).create(context, _desc(desc))
    )

    ze_graph_create2 = creation(
        [Context, Device], lambda context, device, desc: GraphExtension(device).create2(context, _desc(desc))
    )

    def ze_graph_create3(
        self, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
    ) -> tuple[ZeResult, GraphOutcome]:
        log = BuildLog()
        try:
            this, extension = live(context, Context), GraphExtension(live(device, Device))
            given(out)
            graph = self.keep(extension.create3(this, _desc(desc), log))
        except ZeError as failure:
            return ZeResult(failure.result), GraphOutcome(None, log)
        return ZeResult.SUCCESS, GraphOutcome(graph, log)

    ze_graph_destroy = destruction("pfnDestroy", Graph)
    ze_graph_initialize = method(Graph, "initialize")
    ze_graph_evict = method(Graph, "evict")

    # ------------------------------------------------------------ properties of a graph

    ze_graph_get_properties = told(Graph, lambda this: _properties(this, 1))

    ze_graph_get_properties2 = told(Graph, lambda this: _properties(this, 2))

    ze_graph_get_properties3 = told(Graph, lambda this: _properties(this, 3))

    @answers
    def ze_graph_get_argument_properties(
        self, graph: Handle, index: int, out: bool = True
    ) -> ArgumentProperties:
        return convert(ArgumentProperties, _argument(graph, index, out))

    @answers
    def ze_graph_get_argument_properties2(
        self, graph: Handle, index: int, out: bool = True
    ) -> ArgumentProperties:
        return convert(ArgumentProperties, _argument(graph, index, out))

    @answers
    def ze_graph_get_argument_properties3(
        self, graph: Handle, index: int, out: bool = True
    ) -> ArgumentProperties:
        return convert(ArgumentProperties, _argument(graph, index, out))

    ze_graph_get_argument_metadata = told(
        Graph, lambda this, index: convert(ArgumentMetadata, this.get_argument_metadata(index))
    )

    ze_graph_get_native_binary = told(Graph, Graph.get_native_binary)

    @answers
    def ze_graph_get_native_binary2(self, graph: Handle) -> tuple[Pointer, int]:
        import numpy as np

        blob = live(graph, Graph).get_native_binary2()
        return int(np.frombuffer(blob, dtype=np.uint8).ctypes.data), len(blob)

    # ------------------------------------------------------------ logs and queries

    @answers
    def ze_graph_build_log_get_string(self, graph: Handle) -> tuple[int, str]:
        this = None if graph is None else live(graph, Graph)
        # version 1 belongs to no device in C; it needs only the extension's last failure
        text = GraphExtension(self._some_device()).build_log_get_string(this)
        return len(text.encode()) + 1, text

    @answers
    def ze_graph_build_log_get_string2(self, log: Handle) -> tuple[int, str]:
        this = live(log, BuildLog)
        return this.size, this.get_string()

    ze_graph_build_log_destroy = method(BuildLog, "destroy")

    ze_graph_query_network_create2 = creation(
        [Context, Device],
        lambda context, device, desc: GraphExtension(device).query_network_create(context, _desc(desc)),
    )

    ze_graph_query_network_destroy = destruction("pfnQueryNetworkDestroy", QueryNetwork)

    ze_graph_query_network_get_supported_layers = told(QueryNetwork, QueryNetwork.get_supported_layers)

    ze_graph_query_context_memory = told(
        Context,
        lambda this, kind: convert(MemoryUse, GraphExtension(this.device).query_context_memory(this, kind)),
    )

    # ------------------------------------------------------------ execution

    @results
    def ze_graph_set_argument_value(self, graph: Handle, index: int, value: Pointer) -> None:
        live(graph, Graph).set_argument_value(index, value)

    @results
    def ze_graph_set_argument_value2(
        self, graph: Handle, index: int, chain: Sequence[TensorValue | StridesValue]
    ) -> None:
        tensors = [link.pointer for link in chain if isinstance(link, TensorValue)]
        strides = [link.strides for link in chain if isinstance(link, StridesValue)]
        this = live(graph, Graph)
        this.set_argument_value2(index, tensors[0] if tensors else None, strides[0] if strides else None)

    @results
    def ze_command_list_append_graph_initialize(
        self, command_list: Handle, graph: Handle, *events: Any
    ) -> None:
        this = live(command_list, CommandList)
        if graph is None:
            # this call has its own result for the null graph
            raise error("adapter", ZeResult.ERROR_UNINITIALIZED, "graph", found="null handle")
        signal, waits = events_of(*events)
        this.append_graph_initialize(live(graph, Graph), signal, waits)

    @results
    def ze_command_list_append_graph_execute(
        self, command_list: Handle, graph: Handle, query: Handle = None, *events: Any
    ) -> None:
        this = live(command_list, CommandList)
        signal, waits = events_of(*events)
        profiling = None if query is None else live(query, ProfilingQuery)
        this.append_graph_execute(live(graph, Graph), profiling, signal, waits)

    # ------------------------------------------------------------ profiling

    ze_device_get_profiling_data_properties = told(Device, Device.get_profiling_data_properties)

    ze_graph_profiling_pool_create = creation([Graph], ProfilingPool)

    ze_graph_profiling_pool_destroy = destruction("pfnProfilingPoolDestroy", ProfilingPool)

    ze_graph_profiling_query_create = creation([ProfilingPool], ProfilingPool.create_query)

    ze_graph_profiling_query_destroy = destruction("pfnProfilingQueryDestroy", ProfilingQuery)

    @answers
    def ze_graph_profiling_query_get_data(self, query: Handle, kind: int) -> bytes:
        return live(query, ProfilingQuery).get_data(ProfilingType(kind))

    def _some_device(self) -> Device:
        return self._driver.devices[0]


def _properties(graph: Graph, version: int) -> GraphProperties:
    """Return the properties reported by this version of the call."""
    this = graph.get_properties()
    fields = (this.num_graph_args, this.init_stage_required, this.flags)
    return GraphProperties(*fields[:version])


def _argument(graph: Handle, index: int, out: bool) -> ArgumentProperties3:
    this = live(graph, Graph)
    given(out)
    return this.get_argument_properties(index)


def _desc(desc: GraphDesc | None) -> DriverGraphDesc | None:
    """Return the driver's descriptor; an address becomes a view of its memory."""
    if desc is None:
        return None
    data: bytes | memoryview | None
    if isinstance(desc.input, int):
        data = memoryview((ctypes.c_char * desc.size).from_address(desc.input))
    else:
        data = None if desc.input is None else desc.input[: desc.size]
    return DriverGraphDesc(desc.format, data, desc.build_flags, desc.flags, desc.input_hash)
