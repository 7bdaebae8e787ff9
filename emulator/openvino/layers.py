"""Convert OpenVINO's profile of an inference to the records of the profiling extension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import openvino as ov

from softnpu.emulator.interface.profiling import LayerRecord, LayerStatus, TaskType

_DPU = frozenset(
    {
        "AvgPool", "BinaryConvolution", "Convolution", "Deconvolution", "DeformableConvolution", "Eltwise",
        "FullyConnected", "Gemm", "GroupConvolution", "LSTMCell", "LSTMSequence", "MatMul", "MaxPool",
        "Pooling", "RNNCell", "RNNSeq", "ScaledDotProductAttention",
    }
)  # fmt: skip
_DMA = frozenset(
    {
        "Broadcast", "Concat", "Concatenation", "Const", "Constant", "Convert", "Gather", "Input",
        "MemoryInput", "MemoryOutput", "Output", "Pad", "Parameter", "Reorder", "Reshape", "Result",
        "ScatterUpdate", "Slice", "Split", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
_STATUS = {
    ov.ProfilingInfo.Status.NOT_RUN: LayerStatus.NOT_RUN,
    ov.ProfilingInfo.Status.OPTIMIZED_OUT: LayerStatus.OPTIMIZED_OUT,
    ov.ProfilingInfo.Status.EXECUTED: LayerStatus.EXECUTED,
}


def layer_records(infos: Iterable[Any]) -> tuple[LayerRecord, ...]:
    """Return one record per layer, in execution order. OpenVINO gives durations only: layers are adjacent."""
    records = []
    start = 0
    for number, info in enumerate(infos):
        duration = _ns(info.real_time)
        status = _STATUS[info.status]
        kind = str(info.node_type)
        unit = unit_of(kind) if status is LayerStatus.EXECUTED else TaskType.NONE
        records.append(
            LayerRecord(str(info.node_name), kind, unit, status, start, duration, _ns(info.cpu_time), number)
        )
        start += duration
    return tuple(records)


def unit_of(kind: str) -> TaskType:
    """Return the unit of the NPU that would run a layer of this type: DPU, DMA, or a software kernel."""
    if kind in _DPU:
        return TaskType.DPU
    return TaskType.DMA if kind in _DMA else TaskType.SW


def _ns(delta: Any) -> int:
    nanoseconds: int = round(delta.total_seconds() * 1e9)
    return nanoseconds
