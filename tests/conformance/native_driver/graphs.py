"""The graph and profiling extensions of the native driver."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from ctypes import c_size_t, c_uint32, c_void_p
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api import structures as api
from tests.conformance.api.structures import Answer, Handle, Pointer
from tests.conformance.native_driver import library as lib
from tests.conformance.native_driver.session import (
    Session,
    answer,
    data,
    events_of,
    handle,
    pointer,
    slot,
    text,
)

_INPUT_HASH, _PROPERTY_STRIDES, _TENSOR, _STRIDES = 0x8, 0x9, 0xA, 0xB
_ARGUMENT_PROPERTIES = (0x4, 0xC, 0xD)
_OTHER_RECORD, _NOWHERE = 0x5, 0x10


class NativeGraphs(Session):
    """Graphs: from a model to an inference and its profile."""

    # ------------------------------------------------------------ device and options

    def ze_device_get_graph_properties(
        self, device: Handle, out: bool = True
    ) -> Answer[api.DeviceGraphProperties]:
        struct = lib.DeviceGraphProperties2()
        result = self.graphs.DeviceGetGraphProperties(handle(device), pointer(struct, out))
        names = api.DeviceGraphProperties._fields
        return answer(result, lambda: api.DeviceGraphProperties(*(getattr(struct, name) for name in names)))

    def ze_device_get_graph_properties2(
        self, device: Handle, out: bool = True
    ) -> Answer[api.DeviceGraphProperties2]:
        struct = lib.DeviceGraphProperties2()
        result = self.graphs.DeviceGetGraphProperties2(handle(device), pointer(struct, out))
        return answer(
            result,
            lambda: api.DeviceGraphProperties2(tuple(struct.elf_version), tuple(struct.runtime_version)),
        )

    def ze_graph_compiler_get_supported_options(self, device: Handle, kind: int) -> Answer[str]:
        told = text(self.graphs.CompilerGetSupportedOptions, c_size_t, handle(device), c_uint32(kind))
        return answer(told.result, lambda: told.get()[1])

    def ze_graph_compiler_is_option_supported(
        self, device: Handle, kind: int, name: str | None, value: str | None = None
    ) -> ZeResult:
        texts = (None if given is None else given.encode() for given in (name, value))
        return ZeResult(self.graphs.CompilerIsOptionSupported(handle(device), c_uint32(kind), *texts))

    # ------------------------------------------------------------ life of a graph

    def ze_graph_create(
        self, context: Handle, device: Handle, desc: api.GraphDesc | None, out: bool = True
    ) -> Answer[Handle]:
        return self._made(self.graphs.Create, context, device, desc, out)

    def ze_graph_create2(
        self, context: Handle, device: Handle, desc: api.GraphDesc | None, out: bool = True
    ) -> Answer[Handle]:
        return self._made(self.graphs.Create2, context, device, desc, out)

    def ze_graph_create3(
        self, context: Handle, device: Handle, desc: api.GraphDesc | None, out: bool = True
    ) -> tuple[ZeResult, api.GraphOutcome]:
        given, kept = _desc(desc)
        graph, log = c_void_p(), c_void_p()
        result = self.graphs.Create3(
            handle(context),
            handle(device),
            pointer(given),
            ctypes.byref(graph) if out else None,
            ctypes.byref(log),
        )
        del kept
        return ZeResult(result), api.GraphOutcome(graph.value, log.value)

    ze_graph_destroy = slot("graphs", "Destroy")
    ze_graph_initialize = slot("graphs", "GraphInitialize")
    ze_graph_evict = slot("graphs", "Evict")

    # ------------------------------------------------------------ properties of a graph

    def ze_graph_get_properties(self, graph: Handle, out: bool = True) -> Answer[api.GraphProperties]:
        return self._properties(self.graphs.GetProperties, graph, out)

    def ze_graph_get_properties2(self, graph: Handle, out: bool = True) -> Answer[api.GraphProperties]:
        return self._properties(self.graphs.GetProperties2, graph, out)

    def ze_graph_get_properties3(self, graph: Handle, out: bool = True) -> Answer[api.GraphProperties]:
        return self._properties(self.graphs.GetProperties3, graph, out)

    def ze_graph_get_argument_properties(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[api.ArgumentProperties]:
        return self._argument(self.graphs.GetArgumentProperties, 1, graph, index, out)

    def ze_graph_get_argument_properties2(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[api.ArgumentProperties]:
        return self._argument(self.graphs.GetArgumentProperties2, 2, graph, index, out)

    def ze_graph_get_argument_properties3(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[api.ArgumentProperties]:
        return self._argument(self.graphs.GetArgumentProperties3, 3, graph, index, out)

    def ze_graph_get_argument_metadata(
        self, graph: Handle, index: int, out: bool = True
    ) -> Answer[api.ArgumentMetadata]:
        struct = lib.ArgumentMetadata()
        result = self.graphs.GraphGetArgumentMetadata(handle(graph), c_uint32(index), pointer(struct, out))
        return answer(
            result,
            lambda: api.ArgumentMetadata(
                struct.type,
                struct.friendly_name.decode(),
                struct.data_type,
                tuple(struct.shape[: struct.shape_size]),
                tuple(name.value.decode() for name in struct.tensor_names[: struct.tensor_names_count]),
                struct.input_name.decode(),
            ),
        )

    def ze_graph_get_native_binary(self, graph: Handle) -> Answer[bytes]:
        return data(self.graphs.GetNativeBinary, c_size_t, handle(graph))

    def ze_graph_get_native_binary2(self, graph: Handle) -> Answer[tuple[Pointer, int]]:
        size, place = c_size_t(), c_void_p()
        result = self.graphs.GetNativeBinary2(handle(graph), ctypes.byref(size), ctypes.byref(place))
        return answer(result, lambda: (place.value or 0, size.value))

    # ------------------------------------------------------------ logs and queries

    def ze_graph_build_log_get_string(self, graph: Handle) -> Answer[tuple[int, str]]:
        return text(self.graphs.BuildLogGetString, c_uint32, handle(graph))

    def ze_graph_build_log_get_string2(self, log: Handle) -> Answer[tuple[int, str]]:
        return text(self.graphs.BuildLogGetString2, c_uint32, handle(log))

    ze_graph_build_log_destroy = slot("graphs", "BuildLogDestroy")

    def ze_graph_query_network_create2(
        self, context: Handle, device: Handle, desc: api.GraphDesc | None, out: bool = True
    ) -> Answer[Handle]:
        return self._made(self.graphs.QueryNetworkCreate2, context, device, desc, out)

    ze_graph_query_network_destroy = slot("graphs", "QueryNetworkDestroy")

    def ze_graph_query_network_get_supported_layers(self, query: Handle) -> Answer[str]:
        told = text(self.graphs.QueryNetworkGetSupportedLayers, c_size_t, handle(query))
        return answer(told.result, lambda: told.get()[1])

    def ze_graph_query_context_memory(
        self, context: Handle, kind: int, out: bool = True
    ) -> Answer[api.MemoryUse]:
        struct = lib.MemoryQuery()
        result = self.graphs.QueryContextMemory(handle(context), c_uint32(kind), pointer(struct, out))
        return answer(result, lambda: api.MemoryUse(struct.total, struct.allocated))

    # ------------------------------------------------------------ execution

    def ze_graph_set_argument_value(self, graph: Handle, index: int, value: Pointer) -> ZeResult:
        return ZeResult(self.graphs.SetArgumentValue(handle(graph), c_uint32(index), c_void_p(value)))

    def ze_graph_set_argument_value2(
        self, graph: Handle, index: int, chain: Sequence[api.TensorValue | api.StridesValue]
    ) -> ZeResult:
        links: list[Any] = []
        for link in chain:
            if isinstance(link, api.TensorValue):
                links.append(lib.TensorValue(stype=_TENSOR, pTensor=link.pointer))
            else:
                links.append(lib.StridesValue(stype=_STRIDES, strides=link.strides))
        for owner, link in itertools.pairwise(links):
            owner.pNext = ctypes.addressof(link)
        first = pointer(links[0]) if links else None
        return ZeResult(self.graphs.SetArgumentValue2(handle(graph), c_uint32(index), first))

    def ze_command_list_append_graph_initialize(
        self, command_list: Handle, graph: Handle, *events: Any
    ) -> ZeResult:
        return ZeResult(
            self.graphs.AppendGraphInitialize(handle(command_list), handle(graph), *events_of(*events))
        )

    def ze_command_list_append_graph_execute(
        self, command_list: Handle, graph: Handle, query: Handle = None, *events: Any
    ) -> ZeResult:
        objects = (handle(command_list), handle(graph), handle(query))
        return ZeResult(self.graphs.AppendGraphExecute(*objects, *events_of(*events)))

    # ------------------------------------------------------------ profiling

    def ze_device_get_profiling_data_properties(self, device: Handle, out: bool = True) -> Answer[int]:
        struct = lib.ProfilingProperties()
        result = self.profiling.DeviceGetProfilingDataProperties(handle(device), pointer(struct, out))
        return answer(result, lambda: struct.version)

    def ze_graph_profiling_pool_create(self, graph: Handle, count: int, out: bool = True) -> Answer[Handle]:
        pool = c_void_p()
        place = ctypes.byref(pool) if out else None
        result = self.profiling.ProfilingPoolCreate(handle(graph), c_uint32(count), place)
        return answer(result, lambda: pool.value)

    ze_graph_profiling_pool_destroy = slot("profiling", "ProfilingPoolDestroy")

    def ze_graph_profiling_query_create(self, pool: Handle, index: int, out: bool = True) -> Answer[Handle]:
        query = c_void_p()
        place = ctypes.byref(query) if out else None
        result = self.profiling.ProfilingQueryCreate(handle(pool), c_uint32(index), place)
        return answer(result, lambda: query.value)

    ze_graph_profiling_query_destroy = slot("profiling", "ProfilingQueryDestroy")

    def ze_graph_profiling_query_get_data(self, query: Handle, kind: int) -> Answer[bytes]:
        return data(self.profiling.ProfilingQueryGetData, c_uint32, handle(query), c_uint32(kind))

    # ------------------------------------------------------------

    def _made(
        self, function: Any, context: Handle, device: Handle, desc: api.GraphDesc | None, out: bool
    ) -> Answer[Handle]:
        given, kept = _desc(desc)
        slot = c_void_p()
        place = ctypes.byref(slot) if out else None
        result = function(handle(context), handle(device), pointer(given), place)
        del kept
        return answer(result, lambda: slot.value)

    def _properties(self, function: Any, graph: Handle, out: bool) -> Answer[api.GraphProperties]:
        struct = lib.GraphProperties()
        result = function(handle(graph), pointer(struct, out))
        return answer(
            result, lambda: api.GraphProperties(struct.num_arguments, struct.init_stage, struct.flags)
        )

    def _argument(
        self, function: Any, version: int, graph: Handle, index: int, out: bool
    ) -> Answer[api.ArgumentProperties]:
        strides = lib.PropertyStrides(stype=_PROPERTY_STRIDES)
        # OpenVINO 2025.2 passes an uninitialised record: nothing in it may be followed
        wild = lib.ArgumentProperties(stype=_OTHER_RECORD, pNext=_NOWHERE)
        function(handle(graph), c_uint32(index), pointer(wild, out))
        stype = _ARGUMENT_PROPERTIES[version - 1]
        struct = lib.ArgumentProperties(stype=stype, pNext=ctypes.addressof(strides))
        result = function(handle(graph), c_uint32(index), pointer(struct, out))
        count = struct.associated_tensor_names_count
        return answer(
            result,
            lambda: api.ArgumentProperties(
                struct.name.decode(),
                struct.type,
                tuple(struct.dims),
                struct.network_precision,
                struct.network_layout,
                struct.device_precision,
                struct.device_layout,
                struct.quant_reverse_scale,
                struct.quant_zero_point,
                struct.dims_count,
                struct.debug_friendly_name.decode(),
                tuple(name.value.decode() for name in struct.associated_tensor_names[:count]),
                bool(strides.supports),
            ),
        )


def _desc(desc: api.GraphDesc | None) -> tuple[Any, Any]:
    """Return the C descriptor of a graph, and the objects that must stay alive with it."""
    if desc is None:
        return None, None
    kept: list[Any] = []
    given = lib.GraphDesc(format=desc.format, inputSize=desc.size, flags=desc.flags)
    if desc.build_flags is not None:
        given.pBuildFlags = desc.build_flags.encode()
    if isinstance(desc.input, int):
        given.pInput = desc.input
    elif desc.input is not None:
        buffer = ctypes.create_string_buffer(desc.input, max(1, len(desc.input)))
        given.pInput = ctypes.addressof(buffer)
        kept.append(buffer)
    if desc.input_hash is not None:
        hashed = lib.InputHash(stype=_INPUT_HASH, hash=desc.input_hash)
        given.pNext = ctypes.addressof(hashed)
        kept.append(hashed)
    return given, kept
