"""Builds a neutral graph in code, inferring shapes: for tests, and models that cannot be downloaded.

A value is a `Source`; every method adds one operation and returns its first output. Convolutions take their
weights as a constant of the right size, so a graph has the model's size without its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from softnpu.emulator.prediction.graph import Graph, Operation, Source, Tensor, Value


class GraphBuilder:
    """A graph under construction. Tensors are NCHW, `element_type` is that of all floats."""

    def __init__(self, name: str, element_type: str = "f32") -> None:
        self.name = name
        self._element_type = element_type
        self._operations: list[Operation] = []

    def build(self, *results: Source) -> Graph:
        """Return the graph whose outputs are `results`."""
        for each in results:
            self.add("Result", [each], self.shape(each))
        return Graph(self.name, tuple(self._operations))

    def shape(self, source: Source) -> tuple[int, ...]:
        """Return the static shape of a value."""
        shape = self._operations[source.operation].outputs[source.output].shape
        if shape is None:
            raise ValueError(f"{self._operations[source.operation].name} has no rank")
        return shape

    def add(
        self,
        type: str,
        inputs: Sequence[Source],
        *shapes: tuple[int, ...],
        name: str | None = None,
        element_type: str | None = None,
        value: tuple[float, ...] | None = None,
        **attributes: Value,
    ) -> Source:
        """Add any operation, given the shapes of its outputs."""
        index = len(self._operations)
        outputs = tuple(Tensor(element_type or self._element_type, shape, shape) for shape in shapes)
        self._operations.append(
            Operation(index, name or f"{type}_{index}", type, tuple(inputs), outputs, attributes, value=value)
        )
        return Source(index)

    def parameter(self, *shape: int, element_type: str | None = None) -> Source:
        """Add an input of the model."""
        return self.add("Parameter", [], shape, element_type=element_type)

    def constant(self, *shape: int, element_type: str | None = None) -> Source:
        """Add a constant without its numbers."""
        return self.add("Constant", [], shape, element_type=element_type)

    def convolution(
        self,
        source: Source,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        padding: int | tuple[int, int] | None = None,
        activation: str | None = None,
        bias: bool = True,
    ) -> Source:
        """Add a convolution with bias. Without `padding`, the output is the input over the stride, rounded
        up.
        """
        batch, inputs, height, width = self.shape(source)
        k_h, k_w = (kernel, kernel) if isinstance(kernel, int) else kernel
        p_h, p_w = ((k_h - 1) / 2, (k_w - 1) / 2) if padding is None else _pair(padding)
        out_h = -(-height // stride) if padding is None else int((height + 2 * p_h - k_h) // stride + 1)
        out_w = -(-width // stride) if padding is None else int((width + 2 * p_w - k_w) // stride + 1)
        if groups == 1:
            weights = self.constant(channels, inputs, k_h, k_w)
        else:
            weights = self.constant(groups, channels // groups, inputs // groups, k_h, k_w)
        out = self.add(
            "Convolution" if groups == 1 else "GroupConvolution",
            [source, weights],
            (batch, channels, out_h, out_w),
            strides=(stride, stride),
            pads_begin=(int(p_h), int(p_w)),
            dilations=(1, 1),
        )
        if bias:
            out = self.add("Add", [out, self.constant(1, channels, 1, 1)], self.shape(out))
        return out if activation is None else self.activation(out, activation)

    def depthwise(
        self, source: Source, kernel: int = 3, stride: int = 1, *, activation: str | None = None
    ) -> Source:
        """Add a convolution of each channel by itself."""
        channels = self.shape(source)[1]
        return self.convolution(source, channels, kernel, stride, groups=channels, activation=activation)

    def activation(self, source: Source, type: str) -> Source:
        """Add an element-wise operation of one input; `Relu6` is OpenVINO's Clamp."""
        if type == "Relu6":
            return self.add("Clamp", [source], self.shape(source), min=0.0, max=6.0)
        return self.add(type, [source], self.shape(source))

    def elementwise(self, type: str, left: Source, right: Source) -> Source:
        """Add an operation of two values, broadcast."""
        one, other = self.shape(left), self.shape(right)
        rank = max(len(one), len(other))
        one, other = (1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other
        shape = tuple(max(pair) for pair in zip(one, other, strict=True))
        return self.add(type, [left, right], shape)

    def pool(self, type: str, source: Source, kernel: int, stride: int, padding: int = 0) -> Source:
        """Add a MaxPool or AvgPool, rounding up (`ceil`)."""
        batch, channels, height, width = self.shape(source)
        out_h = -(-(height + 2 * padding - kernel) // stride) + 1
        out_w = -(-(width + 2 * padding - kernel) // stride) + 1
        return self.add(
            type, [source], (batch, channels, out_h, out_w), kernel=(kernel, kernel), strides=(stride, stride)
        )

    def mean(self, source: Source) -> Source:
        """Add the mean over the image."""
        batch, channels, *_ = self.shape(source)
        return self.add("ReduceMean", [source], (batch, channels, 1, 1), keep_dims=True)

    def matmul(self, left: Source, right: Source, *, transposed: bool = False) -> Source:
        """Add a matrix product; `transposed`: of the right one."""
        one, other = self.shape(left), self.shape(right)
        columns = other[-2] if transposed else other[-1]
        return self.add("MatMul", [left, right], (*one[:-1], columns), transpose_b=transposed)

    def linear(self, source: Source, outputs: int, *, bias: bool = True) -> Source:
        """Add a fully connected layer."""
        out = self.matmul(source, self.constant(outputs, self.shape(source)[-1]), transposed=True)
        return self.elementwise("Add", out, self.constant(outputs)) if bias else out

    def concat(self, *sources: Source, axis: int = 1) -> Source:
        """Concatenate values."""
        shape = list(self.shape(sources[0]))
        shape[axis] = sum(self.shape(each)[axis] for each in sources)
        return self.add("Concat", sources, tuple(shape), axis=axis)

    def split(self, source: Source, *sizes: int, axis: int = 1) -> tuple[Source, ...]:
        """Split a value along an axis."""
        whole = self.shape(source)
        shapes = tuple((*whole[:axis], size, *whole[axis + 1 :]) for size in sizes)
        first = self.add("VariadicSplit", [source], *shapes)
        return tuple(Source(first.operation, position) for position in range(len(sizes)))

    def reshape(self, source: Source, *shape: int) -> Source:
        """Reshape a value."""
        if math.prod(shape) != math.prod(self.shape(source)):
            raise ValueError(f"{list(self.shape(source))} does not have the elements of {list(shape)}")
        return self.add("Reshape", [source], shape)

    def transpose(self, source: Source, *order: int) -> Source:
        """Permute the axes of a value."""
        shape = self.shape(source)
        given = self.add("Constant", [], (len(order),), element_type="i64", value=tuple(map(float, order)))
        return self.add("Transpose", [source, given], tuple(shape[axis] for axis in order))

    def resize(self, source: Source, height: int, width: int, mode: str = "nearest") -> Source:
        """Resize an image."""
        batch, channels, *_ = self.shape(source)
        return self.add("Interpolate", [source], (batch, channels, height, width), mode=mode)


def _pair(padding: int | tuple[int, int]) -> tuple[int, int]:
    return (padding, padding) if isinstance(padding, int) else padding
