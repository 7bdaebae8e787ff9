"""The demands of a group on the device: padded DPU cycles, SHAVE elements, bytes to and from DDR."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Source, Tensor
from softnpu.emulator.prediction.groups import Group, Unit
from softnpu.emulator.prediction.quantisation import Quantisation
from softnpu.emulator.prediction.timing.devices import Device

CHANNELS: Final = 16
"""Channels come in multiples of 16 (VPUNN, `device_layer_properties`); the first layer's of 4."""
SPATIAL: Final = 4
"""Rows and columns of an output come in multiples of 4: 14x4 and 14x2 take the same time (VPUNN's tests)."""
POSITIONS: Final = 16
"""Rows of a matrix come in multiples of 16: the spatial positions that share the MACs of one cycle."""
FEW_CHANNELS: Final = 4
DEPTHWISE_CHANNELS: Final = {1: 32, 2: 16}
"""Channels of a depthwise convolution, by bytes of an element: 16 of int8 take as long as 32 (VPUNN)."""
WORKLOAD_CYCLES: Final = 250
"""Cycles of a DPU workload beyond its MACs, from VPUNN's measured convolutions."""


_CONVERTS: Final = frozenset(("FakeQuantize", "Convert", "Multiply", "Subtract", "Reshape"))
"""Operations on an input of the model that its first reader does."""
VECTOR: Final = 32
"""Elements of f16 that a SHAVE of 4000 processes at once (VPUNN, `vector_size`)."""


@dataclass(frozen=True, slots=True)
class Work:
    """One group's work on some or all tiles of a platform.

    `macs` and `dpu_cycles` are zero for other units than the DPU. `ddr_bytes` are the constants, the model's
    inputs and outputs, and what does not fit into CMX.
    """

    group: Group
    int8: bool
    macs: int
    dpu_cycles: float
    elements: int
    rows: int
    kernel: str
    dma_bytes: int
    weights_bytes: int
    spilled_bytes: int
    io_bytes: int
    resident_bytes: int

    @property
    def ddr_bytes(self) -> int:
        """All bytes to and from DDR."""
        return self.weights_bytes + self.spilled_bytes + self.io_bytes


def measure(graph: Graph, group: Group, device: Device, tiles: int, quantised: Quantisation) -> Work:
    """Return the work of one group."""
    int8 = group.unit is Unit.DPU and quantised.multiplies_integers(group.root)
    read = sum(_stored(graph, source, quantised) for source in group.inputs)
    written = _stored(graph, group.output, quantised)
    weights = _weights(graph, group, int8)
    results = any(each.type == "Result" for each in graph.consumers(graph.operations[group.output.operation]))
    external = {source: size for source in group.inputs if (size := _external(graph, source))}
    io = sum(external.values()) + (graph.tensor(group.output).size if results else 0)
    inside = read - sum(_stored(graph, source, quantised) for source in external)
    inside += 0 if results else written
    resident = read + written + min(weights, int(device.cmx.value * tiles) // 2)
    if group.kernel == "Eltwise":
        resident -= written  # it overwrites an input
    spilled = inside if resident > device.cmx.value * tiles else 0
    macs, cycles = _dpu(graph, group, device, tiles, int8)
    out = graph.tensor(group.output)
    elements = out.elements
    if group.kernel == "AttentionSoftmax":
        elements = _attention(graph, group)[0]
    elif group.unit is Unit.SHAVE and group.kernel != "Gather":
        elements = max([elements, *(graph.tensor(source).elements for source in group.inputs)])
    return Work(
        group=group,
        int8=int8,
        macs=macs,
        dpu_cycles=cycles,
        elements=elements,
        rows=_rows(graph, group, elements),
        kernel=_kernel(graph, group),
        dma_bytes=read + written if group.unit is Unit.DMA else 0,
        weights_bytes=weights,
        spilled_bytes=spilled,
        io_bytes=io,
        resident_bytes=read + written,
    )


def _stored(graph: Graph, source: Source, quantised: Quantisation) -> int:
    """Return a value's bytes as the device stores it: floats are f16, or int8 behind a FakeQuantize."""
    tensor = graph.tensor(source)
    if tensor.element_type in ("f32", "f64", "f16", "bf16"):
        return tensor.elements * (1 if quantised.is_integer(source) else 2)
    return min(tensor.size, tensor.elements * 4)


def _external(graph: Graph, source: Source) -> int:
    """Return the bytes read from an input of the model, which the first group converts."""
    operation = graph.operations[source.operation]
    while operation.inputs and operation.type in _CONVERTS:
        operation = graph.operations[operation.inputs[0].operation]
    return operation.outputs[0].size if operation.type == "Parameter" else 0


def _weights(graph: Graph, group: Group, int8: bool) -> int:
    if group.kernel == "Gather":  # a table stays in DDR: only looked-up rows are read
        return graph.tensor(group.output).elements * 2
    total = 0
    for source in group.constants:
        tensor = _compressed(graph, source)
        if tensor.bits and tensor.bits < 16:
            total += tensor.size
        else:
            total += tensor.elements * (1 if int8 else 2)
    return total


def _compressed(graph: Graph, source: Source) -> Tensor:
    """Return a constant's smallest stored form: behind Convert and scale, weights are stored unconverted."""
    whole = graph.tensor(source)
    operation = graph.operations[source.operation]
    for _ in range(8):
        if operation.type == "Constant" or not operation.inputs:
            break
        following = max(operation.inputs, key=lambda each: graph.tensor(each).elements)
        if graph.tensor(following).elements < whole.elements:
            break
        operation = graph.operations[following.operation]
    output = operation.outputs[0]
    return output if output.elements == whole.elements and output.bits < whole.bits else whole


def _rows(graph: Graph, group: Group, elements: int) -> int:
    if group.kernel == "AttentionSoftmax":
        return elements // max(_attention(graph, group)[1], 1)
    if group.kernel not in ("Softmax", "LogSoftmax", "MVN", "NormalizeL2"):
        return 0
    shape = graph.tensor(group.output).shape or (1,)
    axis = group.root.attributes.get("axis", -1)
    if group.kernel == "MVN" and len(shape) == 4:
        return elements // max(shape[-1] * shape[-2], 1)
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return 0
    rows = elements // max(shape[axis], 1)
    # along another axis than the last one a vector holds that many rows
    return rows if axis in (-1, len(shape) - 1) else -(-rows // VECTOR)


def _kernel(graph: Graph, group: Group) -> str:
    if group.kernel == "AttentionSoftmax":
        return "Softmax"
    kernels = {"Multiply": "MultiplyBroadcast", "Add": "AddBroadcast", "Subtract": "AddBroadcast"}
    if group.kernel in kernels:
        shapes = [tensor.shape or () for tensor in graph.input_tensors(group.root)]
        return kernels[group.kernel] if _is_broadcast(shapes) else group.kernel
    return group.kernel


def _is_broadcast(shapes: list[tuple[int, ...]]) -> bool:
    """Return whether elements are repeated in a vector: not those of channels, which are stored last."""
    larger, smaller = sorted(shapes, key=math.prod, reverse=True)
    if larger == smaller:
        return False
    channels = len(larger) == 4 and smaller == (larger[0], larger[1], 1, 1)
    return not channels


def _dpu(graph: Graph, group: Group, device: Device, tiles: int, int8: bool) -> tuple[int, float]:
    """Return the model's MACs, and the padded cycles of the busiest tile."""
    if group.unit is not Unit.DPU:
        return 0, 0.0
    half = 1.0 if int8 else 0.5
    if group.kernel == "Attention":
        return _attention_products(graph, group, device, tiles, half)
    if group.kernel == "MatMul":
        return _product(graph, group, device, tiles, half)
    # a group stores the output of its root; the operations behind it keep the shape
    shape = graph.tensor(group.output).shape or (1,)
    if group.kernel in ("Eltwise", "Scale", "Quantize"):
        elements = math.prod(shape)
        return 0, elements / (device.elementwise.value * half * tiles) + WORKLOAD_CYCLES
    batch, channels, height, width = _image(graph.operations[group.root.index].outputs[0].shape or (1,))
    area, depth = _kernel_size(graph, group)
    macs = batch * channels * height * width * area * depth
    if group.kernel in ("DepthwiseConvolution", "Pool"):
        if group.kernel == "Pool" and group.root.type == "ReduceMean":
            height, width = SPATIAL, SPATIAL  # few outputs: their reduction is what counts
            area = (
                math.prod(graph.tensor(group.root.inputs[0]).shape or (1,)) // max(batch * channels, 1) // 16
            )
            area = max(area, 1)
        step = DEPTHWISE_CHANNELS[1 if int8 else 2]
        rate = device.depthwise_macs.value * half

        def cycles(rows: int, maps: int) -> float:
            return batch * rows * _up(width, SPATIAL) * _up(maps, step) * area / rate

        return macs, _best_split(height, channels, tiles, step, cycles) + WORKLOAD_CYCLES
    groups = 1
    if group.kernel == "GroupConvolution":
        weights = graph.tensor(group.root.inputs[1]).shape or (1,)
        groups = weights[0]
        channels //= groups
    deep = _depth(depth, device)
    rate = device.macs.value * half

    def dense(rows: int, maps: int) -> float:
        positions = max(_up(rows, SPATIAL) * _up(width, SPATIAL), POSITIONS)
        return batch * groups * positions * _up(maps, CHANNELS) * deep * area / rate

    return macs, _best_split(height, channels, tiles, CHANNELS, dense) + WORKLOAD_CYCLES


def _product(graph: Graph, group: Group, device: Device, tiles: int, half: float) -> tuple[int, float]:
    left, right = (tensor.shape or (1,) for tensor in graph.input_tensors(group.root)[:2])
    out = graph.operations[group.root.index].outputs[0].shape or (1,)
    depth = left[-2] if group.root.attributes.get("transpose_a") and len(left) > 1 else left[-1]
    columns = out[-1] if len(right) > 1 and out else 1
    rows = math.prod(out[:-1]) if len(right) <= 2 else (out[-2] if len(out) > 1 else 1)
    batch = math.prod(out) // max(rows * columns, 1)
    macs = batch * rows * columns * depth
    rate = device.macs.value * half

    def cycles(positions: int, maps: int) -> float:
        return _up(positions, POSITIONS) * _up(maps, CHANNELS) * _up(depth, CHANNELS) / rate

    one = _best_split(rows, columns, tiles, CHANNELS, cycles) * batch
    shared = -(-batch // tiles) * cycles(rows, columns)
    return macs, min(one, shared) + WORKLOAD_CYCLES


def _attention(graph: Graph, group: Group) -> tuple[int, int]:
    """Return the scores of an attention over all heads, and the keys per query."""
    query, key = (tensor.shape or (1, 1) for tensor in graph.input_tensors(group.root)[:2])
    return math.prod(query[:-1]) * key[-2], key[-2]


def _attention_products(
    graph: Graph, group: Group, device: Device, tiles: int, half: float
) -> tuple[int, float]:
    """Return MACs and padded cycles (of the busiest tile): queries by keys, scores by values, per head."""
    query, key, value = (tensor.shape or (1, 1) for tensor in graph.input_tensors(group.root)[:3])
    rate, rows, heads = device.macs.value * half, query[-2], math.prod(query[:-2])

    def cycles(maps: int, depth: int) -> float:
        return _up(rows, POSITIONS) * _up(maps, CHANNELS) * _up(depth, CHANNELS) / rate

    both = cycles(key[-2], query[-1]) + cycles(value[-1], key[-2])
    macs = heads * rows * key[-2] * (query[-1] + value[-1])
    return macs, -(-heads // tiles) * both + WORKLOAD_CYCLES


def _best_split(
    height: int, channels: int, tiles: int, step: int, cycles: Callable[[int, int], float]
) -> float:
    """Return the cycles of the busiest tile, split by rows or by whole channel steps, whichever is faster."""
    rows, maps = -(-height // tiles), min(_up(-(-channels // tiles), step), channels)
    return min(cycles(rows, channels), cycles(height, maps))


def _image(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return any shape as batch, channels, height, width; extra dimensions are batch, missing ones 1."""
    if len(shape) == 3:
        return shape[0], shape[1], 1, shape[2]
    if len(shape) < 3:
        return 1, shape[-1] if shape else 1, 1, 1
    return shape[0], shape[1], math.prod(shape[2:-1]), shape[-1]


def _kernel_size(graph: Graph, group: Group) -> tuple[int, int]:
    """Return the taps of the kernel, and the input channels summed by an output."""
    root = group.root
    if group.kernel == "Pool":
        if root.type == "ReduceMean":
            before = graph.tensor(root.inputs[0]).shape or (1,)
            return math.prod(before[2:]), 1
        return math.prod(root.integers("kernel", (1,))), 1
    weights = graph.tensor(root.inputs[1]).shape or (1, 1)
    grouped = root.type.startswith("Group")
    area = math.prod(weights[3:] if grouped else weights[2:])
    if root.type.endswith("BackpropData"):
        strides = math.prod(root.integers("strides", (1,)))
        return max(area // strides, 1), weights[1] if grouped else weights[0]
    return area, weights[2] if grouped else weights[1]


def _depth(depth: int, device: Device) -> int:
    if depth <= FEW_CHANNELS:
        return FEW_CHANNELS
    return _up(depth, CHANNELS if device.pads_channels else 8)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
