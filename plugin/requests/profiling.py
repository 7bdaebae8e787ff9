"""Profiles of inferences as in OpenVINO: one `openvino.ProfilingInfo` for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import openvino as ov

from softnpu.driver import Graph
from softnpu.driver.profiling import LayerInfo, ProfilingPool
from softnpu.emulator.interface.profiling import LayerStatus

_STATUS = {
    LayerStatus.NOT_RUN: ov.ProfilingInfo.Status.NOT_RUN,
    LayerStatus.OPTIMIZED_OUT: ov.ProfilingInfo.Status.OPTIMIZED_OUT,
    LayerStatus.EXECUTED: ov.ProfilingInfo.Status.EXECUTED,
}


class Profiler:
    """The profiling queries of one infer request; executions of the graph fill them in turn.

    `executions` is their number in one inference: one, or one for each sample of a batch.
    """

    def __init__(self, graph: Graph, count: int = 1) -> None:
        self._pool = ProfilingPool(graph, count)
        self.queries = [self._pool.create_query(number) for number in range(count)]
        self.executions = 1

    def info(self) -> list[ov.ProfilingInfo]:
        """Return the last inference's profile. Raises `ZeError`, NOT_AVAILABLE before the first has ended.

        Times are sums over all executions, extrapolated from the last ones if there are more than queries.
        """
        filled = [query.layers() for query in self.queries[: self.executions]]
        scale = self.executions / len(filled)
        return [_info(layers, scale) for layers in zip(*filled, strict=True)]


def _info(layers: Sequence[LayerInfo], scale: float) -> ov.ProfilingInfo:
    layer = layers[0]
    info = ov.ProfilingInfo()
    info.node_name = layer.name
    info.node_type = layer.layer_type
    info.exec_type = _unit(layer)
    info.status = _STATUS[layer.status]
    spent = sum(one.duration_ns for one in layers) * scale
    busy = sum(one.dpu_ns + one.sw_ns + one.dma_ns for one in layers) * scale
    info.real_time = timedelta(microseconds=spent / 1000)
    info.cpu_time = timedelta(microseconds=busy / 1000)
    return info


def _unit(layer: LayerInfo) -> str:
    for unit, spent in (("DPU", layer.dpu_ns), ("SW", layer.sw_ns), ("DMA", layer.dma_ns)):
        if spent:
            return unit
    return ""
