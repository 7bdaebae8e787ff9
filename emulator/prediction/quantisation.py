"""What is quantised in a graph, and the graph that NNCF would make of one that is not.

NNCF puts a FakeQuantize before each product and each sum (of matrices or element by element), as early as the
operations between only move values. An ONNX file spells the same as QuantizeLinear and DequantizeLinear,
which OpenVINO reads as a FakeQuantize followed by conversions to integers and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Operation, Source

PRODUCTS: Final = frozenset(
    (
        "Convolution",
        "ConvolutionBackpropData",
        "GroupConvolution",
        "GroupConvolutionBackpropData",
        "MatMul",
    )
)
_ON_INTEGERS: Final = PRODUCTS | {"Add", "AvgPool", "MaxPool", "ReduceMean"}
"""Operations of the DPU that read integers, and write whatever is asked for."""
_MOVES: Final = frozenset(
    (
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Concat",
        "Split",
        "VariadicSplit",
        "StridedSlice",
        "Slice",
        "MaxPool",
        "Pad",
        "SpaceToDepth",
        "DepthToSpace",
        "ShuffleChannels",
        "Relu",
        "Clamp",
    )
)
"""Operations that keep integers: behind a FakeQuantize they need no second one."""
_LEVELS: Final = 256


class Quantisation:
    """Which values of a graph are 8-bit integers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folded = graph.constant_like
        self.is_integer = cache(self._is_integer)

    def _is_integer(self, source: Source) -> bool:
        """Return whether a value comes from a FakeQuantize of at most 256 levels, or from 8-bit constants."""
        operation = self._graph.operations[source.operation]
        if operation.type == "FakeQuantize":
            levels = operation.attributes.get("levels", _LEVELS)
            return isinstance(levels, int) and levels <= _LEVELS
        if operation.outputs[source.output].element_type in ("i8", "u8"):
            return True
        if operation.type in ("Multiply", "Subtract", "Convert") or keeps_integers(operation):
            read = self._read(operation)
            if operation.type in ("Multiply", "Subtract") and len(read) > 1:
                return False
            return bool(read) and all(self.is_integer(each) for each in read)
        return False

    def _read(self, operation: Operation) -> tuple[Source, ...]:
        """Return the data that an operation reads, without axes, scales and shapes."""
        if operation.type == "Concat":
            return operation.inputs
        if operation.index in self._folded or operation.type not in ("Multiply", "Subtract"):
            return operation.inputs[:1]
        return tuple(each for each in operation.inputs if each.operation not in self._folded)

    def conversions(self, quantised: Operation) -> Iterator[Operation]:
        """Yield the operations that convert a FakeQuantize's integers back, as of DequantizeLinear."""
        waiting = [quantised]
        while waiting:
            for each in self._graph.consumers(waiting.pop(0)):
                follows = each.type == "Convert"
                if each.type in ("Subtract", "Multiply"):
                    others = [one for one in each.inputs if one.operation not in self._folded]
                    producer = self._graph.operations[others[0].operation] if len(others) == 1 else quantised
                    follows = producer.type in ("Convert", "Subtract")
                if follows:
                    yield each
                    waiting.append(each)

    def is_read_as_integers(self, quantised: Operation) -> bool:
        """Return whether an operation of the DPU reads integers of this FakeQuantize."""
        waiting, seen = [quantised, *self.conversions(quantised)], set[int]()
        while waiting:
            for each in self._graph.consumers(waiting.pop()):
                if each.type in _ON_INTEGERS and self.multiplies_integers(each):
                    return True
                if keeps_integers(each) and each.index not in seen:
                    seen.add(each.index)
                    waiting.append(each)
        return False

    def multiplies_integers(self, operation: Operation) -> bool:
        """Return whether all data of an operation are integers: those of a product include its weights."""
        if operation.type in PRODUCTS:
            read = operation.inputs[:2]
        else:
            read = tuple(each for each in operation.inputs if each.operation not in self._folded)
        return bool(read) and all(self.is_integer(each) for each in read)


def keeps_integers(operation: Operation) -> bool:
    """Return whether an operation only moves or selects values."""
    if operation.type == "Interpolate":
        return operation.attributes.get("mode") == "nearest"
    return operation.type in _MOVES


def quantised(graph: Graph) -> Graph:
    """Return the graph as NNCF quantises it to int8, without the numbers."""
    return _Quantiser(graph).graph()


class _Quantiser:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folded = graph.constant_like
        self._operations: list[Operation] = []
        self._moved: dict[int, int] = {}
        self._quantised: dict[Source, Source] = {}

    def graph(self) -> Graph:
        wanted = self._wanted()
        for each in self._graph:
            inputs = tuple(self._source(source) for source in each.inputs)
            if each.type in _ON_INTEGERS or each.type == "Multiply" or keeps_integers(each):
                inputs = tuple(
                    self._quantised[source] if source in wanted else self._source(source)
                    for source in each.inputs
                )
            self._moved[each.index] = len(self._operations)
            self._operations.append(replace(each, index=len(self._operations), inputs=inputs))
            for output in range(len(each.outputs)):
                if (source := Source(each.index, output)) in wanted:
                    self._quantise(source)
        return Graph(self._graph.name, tuple(self._operations))

    def _wanted(self) -> frozenset[Source]:
        """Return the values to quantise: what products and sums read, before operations that only move it."""
        wanted: set[Source] = set()
        for each in self._graph:
            if each.index in self._folded:
                continue
            if each.type in PRODUCTS:
                wanted.update(self._origins(each.inputs[0]))
                wanted.update(self._origins(each.inputs[1]))
            elif each.type in ("Add", "Multiply") and all(
                one.operation not in self._folded for one in each.inputs
            ):
                for source in each.inputs:
                    wanted.update(self._origins(source))
        return frozenset(wanted)

    def _origins(self, source: Source) -> Iterator[Source]:
        operation = self._graph.operations[source.operation]
        if (
            source.operation in self._folded
            or not keeps_integers(operation)
            or operation.type in ("Relu", "Clamp")
        ):
            yield source
            return
        for each in operation.inputs if operation.type == "Concat" else operation.inputs[:1]:
            yield from self._origins(each)

    def _source(self, source: Source) -> Source:
        return Source(self._moved[source.operation], source.output)

    def _quantise(self, source: Source) -> None:
        value = self._source(source)
        tensor = self._operations[value.operation].outputs[value.output]
        index = len(self._operations)
        name = f"{self._operations[value.operation].name}/fq"
        self._operations.append(
            Operation(index, name, "FakeQuantize", (value,), (tensor,), {"levels": _LEVELS})
        )
        self._quantised[source] = Source(index)
