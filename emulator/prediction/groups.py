"""The operations that the device fuses: it rounds and stores once behind each group.

A convolution includes the bias, the activation and the quantisation behind it (the post-processing of the
DPU); `x * sigmoid(x)` is one software kernel. A FakeQuantize elsewhere is a pass of the DPU if products read
its integers; among software kernels, which compute in f16, the compiler removes it. Operations that only
rename memory (a reshape, a concatenation of DPU outputs along the channels) are not groups: they cost
nothing. The rules are those of the public compiler's passes, by effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Operation, Source, Tensor
from softnpu.emulator.prediction.patterns import Pattern, find_patterns
from softnpu.emulator.prediction.quantisation import Quantisation


class Unit(Enum):
    """The unit that computes a group."""

    DPU = "DPU"
    SHAVE = "SHAVE"
    DMA = "DMA"


@dataclass(frozen=True)
class Group:
    """Operations computed together. `kernel` is what the unit runs, `root` the operation that names it.

    `inputs` are values from other groups or parameters of the model; constants are in `constants`.
    """

    unit: Unit
    kernel: str
    root: Operation
    members: tuple[Operation, ...]
    inputs: tuple[Source, ...]
    constants: tuple[Source, ...]
    output: Source

    @property
    def name(self) -> str:
        """The friendly name of the root operation."""
        return self.root.name


CONVOLUTIONS: Final = frozenset(("Convolution", "ConvolutionBackpropData", "BinaryConvolution"))
GROUP_CONVOLUTIONS: Final = frozenset(("GroupConvolution", "GroupConvolutionBackpropData"))
_POOLS: Final = frozenset(("MaxPool", "AvgPool"))
_FUSED: Final = frozenset(("Relu", "Clamp", "PRelu", "LeakyRelu", "FakeQuantize", "Convert"))
_ACTIVATIONS: Final = frozenset(("Sigmoid", "Tanh", "Swish", "Gelu", "HSwish"))
_LARGEST_POOL: Final = 11
_FREE: Final = frozenset(
    ("Parameter", "Constant", "Result", "Reshape", "Squeeze", "Unsqueeze", "ReadValue", "Assign", "Identity")
)
_MOVES: Final = frozenset(
    (
        "Concat",
        "Split",
        "VariadicSplit",
        "StridedSlice",
        "Slice",
        "Pad",
        "Broadcast",
        "Tile",
        "SpaceToDepth",
        "DepthToSpace",
        "ShuffleChannels",
        "ReverseSequence",
        "Reverse",
        "Roll",
    )
)
_VIEWS: Final = frozenset(("Concat", "Split", "VariadicSplit", "StridedSlice", "Slice"))


def fuse(
    graph: Graph, native: frozenset[str] = frozenset(), quantised: Quantisation | None = None
) -> tuple[Group, ...]:
    """Return the groups of a graph, in its order.

    `native` are additional operations of a newer DPU: activations in its post-processing (Sigmoid, Tanh,
    Swish, Gelu, HSwish), Multiply of two tensors, MVN.
    """
    return tuple(_Fusion(graph, native, quantised or Quantisation(graph)).groups())


class _Fusion:
    def __init__(self, graph: Graph, native: frozenset[str], quantised: Quantisation) -> None:
        self._graph = graph
        self._folded = graph.constant_like
        self._quantised = quantised
        self._patterns = find_patterns(graph)
        self._taken: set[int] = set()
        self._native = native
        self._fused = _FUSED | (native & _ACTIVATIONS)

    def groups(self) -> Iterator[Group]:
        for each in self._graph:
            if each.index in self._folded or each.index in self._taken or each.type in _FREE:
                continue
            if each.type == "FakeQuantize" and self._only_constants(each):
                continue
            for group in self._groups(each):
                self._taken.update(member.index for member in group.members)
                yield group

    def _groups(self, operation: Operation) -> Iterator[Group]:
        if operation.type == "ScaledDotProductAttention":
            yield self._make(Unit.DPU, "Attention", [operation])
            yield self._make(Unit.SHAVE, "AttentionSoftmax", [operation])
        elif (group := self._group(operation)) is not None:
            yield group

    def _group(self, operation: Operation) -> Group | None:
        if (pattern := self._patterns.get(operation.index)) is not None:
            if pattern.kernel == "MVN" and "MVN" in self._native:
                return self._make(Unit.DPU, "Eltwise", list(pattern.members))
            return self._make(Unit.SHAVE, pattern.kernel, list(pattern.members))
        if operation.type == "FakeQuantize":
            return self._quantise(operation)
        kernel = self._dpu_kernel(operation)
        if kernel is not None:
            return self._make(Unit.DPU, kernel, [operation, *self._behind(operation)])
        if operation.type in _MOVES or self._copies_pixels(operation):
            if operation.type in _VIEWS and self._is_view(operation):
                return None
            return self._make(Unit.DMA, operation.type, [operation])
        if operation.type == "Transpose" and self._keeps_vectors(operation):
            return self._make(Unit.DMA, operation.type, [operation])
        if operation.type == "Transpose":
            return (
                None if self._is_stored_so(operation) else self._make(Unit.SHAVE, "MemPermute", [operation])
            )
        if operation.type == "Convert" and self._reads_input(operation):
            return None  # the first layer, or the transfer, converts
        return self._make(Unit.SHAVE, operation.type, [operation])

    def _quantise(self, operation: Operation) -> Group | None:
        """Return the pass that makes integers for a product, with the conversions back; None for no work."""
        if not self._quantised.is_integer(Source(operation.index)):
            return self._make(Unit.SHAVE, "FakeQuantize", [operation])  # too many levels for integers
        members = [operation, *self._quantised.conversions(operation)]
        self._taken.update(member.index for member in members)
        if self._reads_input(operation) or not self._quantised.is_read_as_integers(operation):
            return None
        return self._make(Unit.DPU, "Quantize", members)

    def _dpu_kernel(self, operation: Operation) -> str | None:
        graph = self._graph
        if operation.type in CONVOLUTIONS:
            return "Convolution"
        if operation.type in GROUP_CONVOLUTIONS:
            weights = graph.tensor(operation.inputs[1]).shape or ()
            return "DepthwiseConvolution" if len(weights) > 2 and weights[2] == 1 else "GroupConvolution"
        if operation.type == "MatMul":
            return "MatMul"
        if operation.type in _POOLS:
            return "Pool" if max(operation.integers("kernel", (1,))) <= _LARGEST_POOL else None
        if operation.type == "ReduceMean" and self._spatial_mean(operation):
            return "Pool"
        if operation.type in ("Add", "Subtract", "Multiply"):
            return self._elementwise_kernel(operation)
        return "Eltwise" if operation.type == "MVN" and "MVN" in self._native else None

    def _elementwise_kernel(self, operation: Operation) -> str | None:
        """Return the DPU's kernel: add two tensors of one shape, or scale and shift channels by constants."""
        graph = self._graph
        if any(source.operation in self._folded for source in operation.inputs):
            return "Scale" if self._floating(operation) else None
        if operation.type == "Multiply" and "Multiply" not in self._native:
            return None
        shapes = {tensor.shape for tensor in graph.input_tensors(operation)}
        return "Eltwise" if len(shapes) == 1 and self._floating(operation) else None

    def _behind(self, operation: Operation) -> Iterator[Operation]:
        """Yield the post-processing of the DPU: bias, scale, activation, quantisation."""
        last = operation
        while True:
            readers = self._readers(last)
            if (pattern := self._activation(readers)) is not None:
                yield from pattern.members
                last = pattern.members[-1]
                continue
            if len(readers) != 1:
                return
            reader = readers[0]
            if reader.type in ("Add", "Subtract", "Multiply"):
                others = [source for source in reader.inputs if source.operation != last.index]
                if len(others) != 1 or others[0].operation not in self._folded:
                    return
                if self._graph.tensor(others[0]).elements > self._graph.tensor(Source(last.index)).elements:
                    return
            elif reader.type not in self._fused:
                return
            yield reader
            last = reader
            if reader.type == "FakeQuantize":
                yield from self._quantised.conversions(reader)
                return

    def _activation(self, readers: list[Operation]) -> Pattern | None:
        """Return the activation that all readers of a value belong to, if the DPU has it."""
        if not readers or (pattern := self._patterns.get(readers[0].index)) is None:
            return None
        inside = {member.index for member in pattern.members}
        fits = pattern.kernel in self._fused and all(each.index in inside for each in readers)
        return pattern if fits else None

    def _readers(self, operation: Operation) -> list[Operation]:
        """Return the run-time readers of a value, without operations that read only its shape."""
        return [each for each in self._graph.consumers(operation) if each.index not in self._folded]

    def _spatial_mean(self, operation: Operation) -> bool:
        before, after = self._graph.tensor(operation.inputs[0]).shape, operation.outputs[0].shape
        if before is None or after is None or len(before) != 4:
            return False
        return before[:2] == after[:2] and after[2:] in ((1, 1), ())

    def _copies_pixels(self, operation: Operation) -> bool:
        """Return whether an image grows by whole factors without interpolation, which DMA descriptors do."""
        if operation.type != "Interpolate" or operation.attributes.get("mode") != "nearest":
            return False
        before, after = self._input(operation).shape, operation.outputs[0].shape
        if before is None or after is None or len(before) != len(after) or -1 in before:
            return False
        return all(new % max(old, 1) == 0 for old, new in zip(before, after, strict=True))

    def _is_view(self, operation: Operation) -> bool:
        """Return whether parts of a tensor are accessed in place: along channels, beside the DPU."""
        shape = (operation.outputs[0] if operation.type == "Concat" else self._input(operation)).shape
        if shape is None or len(shape) != 4:
            return False
        if operation.type == "Concat":
            producers = (self._graph.operations[source.operation] for source in operation.inputs)
            return all(each.type != "Parameter" for each in producers)
        return True

    def _is_stored_so(self, operation: Operation) -> bool:
        """Return whether the new order is the memory order: the device stores images with channels last."""
        order = self._graph.producer(operation, 1)
        before = self._input(operation).shape
        if order is None or order.value is None or before is None:
            return False
        axes = tuple(int(each) for each in order.value)
        moved = tuple(axis for axis in axes if before[axis] != 1)
        return axes in ((0, 2, 3, 1), (0, 2, 1), (0, 3, 1, 2)) or moved == tuple(sorted(moved))

    def _keeps_vectors(self, operation: Operation) -> bool:
        """Return whether whole vectors move, as heads of attention do, by descriptors of the DMA."""
        order, before = self._graph.producer(operation, 1), self._input(operation).shape
        if self._is_stored_so(operation) or order is None or order.value is None or before is None:
            return False
        return len(before) == 4 and order.value[-1] == 3

    def _input(self, operation: Operation) -> Tensor:
        return self._graph.tensor(operation.inputs[0])

    def _reads_input(self, operation: Operation) -> bool:
        producer = self._graph.producer(operation, 0)
        computes = any(each.type != "Result" for each in self._readers(operation))
        return producer is not None and producer.type == "Parameter" and computes

    def _only_constants(self, operation: Operation) -> bool:
        return all(source.operation in self._folded for source in operation.inputs)

    def _floating(self, operation: Operation) -> bool:
        return operation.outputs[0].element_type in ("f16", "f32", "bf16", "i8", "u8")

    def _make(self, unit: Unit, kernel: str, members: list[Operation]) -> Group:
        inside = {member.index for member in members}
        inputs: dict[Source, None] = {}
        constants: dict[Source, None] = {}
        for member in members:
            for source in member.inputs:
                if source.operation in inside:
                    continue
                (constants if source.operation in self._folded else inputs)[source] = None
        return Group(
            unit=unit,
            kernel=kernel,
            root=members[0] if unit is Unit.DPU else members[-1],
            members=tuple(members),
            inputs=tuple(inputs),
            constants=tuple(constants),
            output=Source(members[-1].index),
        )
