"""Profiles of inferences as OpenVINO gives them: `openvino.ProfilingInfo`, one a layer."""

from __future__ import annotations

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
    """The profiling query of one infer request."""

    def __init__(self, graph: Graph) -> None:
        self._pool = ProfilingPool(graph, 1)
        self.query = self._pool.create_query(0)

    def info(self) -> list[ov.ProfilingInfo]:
        """The profile of the last inference; `ZeError` with NOT_AVAILABLE before the first has ended."""
        return [_info(layer) for layer in self.query.layers()]


def _info(layer: LayerInfo) -> ov.ProfilingInfo:
    info = ov.ProfilingInfo()
    info.node_name = layer.name
    info.node_type = layer.layer_type
    info.exec_type = _unit(layer)
    info.status = _STATUS[layer.status]
    info.real_time = timedelta(microseconds=layer.duration_ns / 1000)
    info.cpu_time = timedelta(microseconds=(layer.dpu_ns + layer.sw_ns + layer.dma_ns) / 1000)
    return info


def _unit(layer: LayerInfo) -> str:
    for unit, spent in (("DPU", layer.dpu_ns), ("SW", layer.sw_ns), ("DMA", layer.dma_ns)):
        if spent:
            return unit
    return ""
