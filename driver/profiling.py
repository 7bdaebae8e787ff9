"""The profiling extension: pools and queries of one graph, filled by its inferences."""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

import msgspec

from softnpu.driver.block import Block
from softnpu.driver.errors import check_type, invalid_argument, not_available
from softnpu.driver.handle import Handle
from softnpu.driver.properties import Record
from softnpu.driver.query_pool import Query, QueryPool
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.profiling import LayerStatus, Profile, TaskType

if TYPE_CHECKING:
    from softnpu.driver.graph import Graph

_LAYERS_PER_OPERATION = 2
_LAYERS_MORE = 64
_CYCLES = 0xFFFFFFFF  # a counter of 32 bits
_LAYER = struct.Struct("<256s50s2xIQQI4xQQQQ")
_TASK = struct.Struct("<256s50s2xIQQIIII")


class ProfilingType(enum.IntFlag):
    """`ze_graph_profiling_type_t`."""

    LAYER_LEVEL = 1
    TASK_LEVEL = 2
    RAW = 4


class LayerInfo(Record, frozen=True, kw_only=True):
    """`ze_profiling_layer_info`. Times in nanoseconds of the host clock, `start_time_ns` absolute."""

    name: str
    layer_type: str
    status: LayerStatus
    start_time_ns: int
    duration_ns: int
    layer_id: int
    fused_layer_id: int
    dpu_ns: int
    sw_ns: int
    dma_ns: int


class TaskInfo(Record, frozen=True, kw_only=True):
    """`ze_profiling_task_info`. Host time in nanoseconds; cycles are modelled at the device's clock."""

    name: str
    layer_type: str
    exec_type: TaskType
    start_time_ns: int
    duration_ns: int
    active_cycles: int
    stall_cycles: int
    task_id: int
    parent_layer_id: int


class ProfilingPool(QueryPool):
    """Room for `count` queries on one graph compiled with profiling."""

    _name = "profiling pool"
    _destroy_call = "pfnProfilingPoolDestroy"

    def __init__(self, graph: Graph, count: int) -> None:
        call = "pfnProfilingPoolCreate"
        check_type(call, "graph", graph, Handle)
        graph._check(call)
        if not graph.profiled:
            raise not_available(
                call,
                f"graph '{graph.meta.name}'",
                found="compiled without profiling",
                expected="a graph created with the profiling flag",
            )
        self._check_count(call, count)
        self.graph = graph
        layers = graph.meta.operations * _LAYERS_PER_OPERATION + _LAYERS_MORE
        query_size = -(-profiling.size_for(layers) // 64) * 64
        self._allocate(call, graph.context, count, query_size)

    def create_query(self, index: int) -> ProfilingQuery:
        """`pfnProfilingQueryCreate`. INVALID_ARGUMENT out of range, HANDLE_OBJECT_IN_USE for a used one."""
        call = "pfnProfilingQueryCreate"
        self._check(call)
        self._acquire(call, index)
        return ProfilingQuery(self, index)


class ProfilingQuery(Query):
    """The profile of the last inference executed with this query."""

    _pool: ProfilingPool

    def __init__(self, pool: ProfilingPool, index: int) -> None:
        super().__init__(pool, index)
        start = self._start
        pool._block.mapping.buffer[start : start + 4] = bytes(4)  # left by an earlier query

    def _location(self, call: str, graph: Graph) -> tuple[Block, int]:
        """Return where the engine writes. INVALID_ARGUMENT for another graph's query."""
        self._check(call)
        if graph is not self._pool.graph:
            raise invalid_argument(
                call,
                "profiling query",
                found=f"of graph '{self._pool.graph.meta.name}'",
                expected=f"a query of graph '{graph.meta.name}'",
            )
        return self._pool._block, self._offset

    def layers(self) -> list[LayerInfo]:
        """Return one record for each layer, in execution order.

        Raises `ZeError` with NOT_AVAILABLE until an inference has ended with this query.
        """
        profile = self._profile()
        return [
            LayerInfo(
                name=layer.name,
                layer_type=layer.type,
                status=layer.status,
                start_time_ns=profile.start + layer.start,
                duration_ns=layer.duration,
                layer_id=layer.layer,
                fused_layer_id=0,
                dpu_ns=layer.duration if layer.unit is TaskType.DPU else 0,
                sw_ns=layer.duration if layer.unit is TaskType.SW else 0,
                dma_ns=layer.duration if layer.unit is TaskType.DMA else 0,
            )
            for layer in profile.layers
        ]

    def tasks(self) -> list[TaskInfo]:
        """Return one record for every executed layer: OpenVINO does not split layers further."""
        profile = self._profile()
        clock = self._pool.graph.context._device_info.core_clock_mhz
        return [
            TaskInfo(
                name=layer.name,
                layer_type=layer.type,
                exec_type=layer.unit,
                start_time_ns=profile.start + layer.start,
                duration_ns=layer.duration,
                active_cycles=layer.cpu * clock // 1000 & _CYCLES,
                stall_cycles=max(0, layer.duration - layer.cpu) * clock // 1000 & _CYCLES,
                task_id=number,
                parent_layer_id=layer.layer,
            )
            for number, layer in enumerate(profile.layers)
            if layer.status is LayerStatus.EXECUTED
        ]

    def get_data(self, kind: ProfilingType) -> bytes:
        """`pfnProfilingQueryGetData`: records in C layout, or the raw profile."""
        if kind == ProfilingType.RAW:
            self._profile()
            return self._raw()
        if kind == ProfilingType.LAYER_LEVEL:
            return b"".join(_pack(_LAYER, layer) for layer in self.layers())
        if kind == ProfilingType.TASK_LEVEL:
            return b"".join(_pack(_TASK, task) for task in self.tasks())
        raise invalid_argument(
            "pfnProfilingQueryGetData",
            "profiling type",
            found=f"{int(kind)}",
            expected="LAYER_LEVEL (1), TASK_LEVEL (2) or RAW (4)",
        )

    def log_get_string(self) -> str:
        """`pfnProfilingLogGetString`: the log of the last decoding; decoding here leaves none."""
        self._check("pfnProfilingLogGetString")
        return ""

    def _raw(self) -> bytes:
        start = self._start
        data = self._pool._block.mapping.buffer[start : start + self._pool._query_size]
        count = profiling.HEADER.unpack_from(data)[2]
        return data[: profiling.size_for(count)]

    def _profile(self) -> Profile:
        call = "pfnProfilingQueryGetData"
        self._check(call)
        profile = profiling.decode(self._raw())
        if profile is None:
            raise not_available(
                call,
                "profiling query",
                found="no inference has ended with it",
                expected="an inference that was executed with this query",
            )
        return profile


def _pack(record: struct.Struct, info: LayerInfo | TaskInfo) -> bytes:
    """Pack a record in its C layout; the numbers after the texts have its order and sizes."""
    name, kind, *numbers = msgspec.structs.astuple(info)
    return record.pack(name.encode()[:255], kind.encode()[:49], *numbers)
