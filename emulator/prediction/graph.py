"""A neutral description of a model: operations with types, shapes and attributes, and the edges between them.

All predictions read it. `reader.py` makes it from an `openvino.Model`; tests build it in code
(`tests/prediction/graph_builder.py`). Names of operations, attributes and element types are OpenVINO's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

DYNAMIC: Final = -1
"""A dimension that is unknown before the inference."""

BITS: Final[Mapping[str, int]] = {
    "boolean": 8,
    "u1": 1,
    "u2": 2,
    "u3": 3,
    "i4": 4,
    "u4": 4,
    "nf4": 4,
    "f4e2m1": 4,
    "u6": 6,
    "i8": 8,
    "u8": 8,
    "f8e4m3": 8,
    "f8e5m2": 8,
    "f8e8m0": 8,
    "i16": 16,
    "u16": 16,
    "f16": 16,
    "bf16": 16,
    "i32": 32,
    "u32": 32,
    "f32": 32,
    "i64": 64,
    "u64": 64,
    "f64": 64,
}
"""Bits of one element, by OpenVINO's name of its type. Others (string, dynamic) have no size."""

Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""The types of attribute values."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of one value: `shape` is None for a dynamic rank, and holds `DYNAMIC` for a dynamic dimension.

    `upper` has the bound of each dimension, `DYNAMIC` if unbounded; it equals `shape` if that is static.
    """

    element_type: str
    shape: tuple[int, ...] | None
    upper: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        """Whether every dimension is known."""
        return self.shape is not None and DYNAMIC not in self.shape

    @property
    def elements(self) -> int:
        """Number of elements; a dynamic dimension counts as its bound, or as 1 without one."""
        if self.shape is None:
            return 1
        upper = self.upper or self.shape
        known = (bound if size == DYNAMIC else size for size, bound in zip(self.shape, upper, strict=True))
        return math.prod(max(size, 1) if size == DYNAMIC else size for size in known)

    @property
    def bits(self) -> int:
        """Bits of one element; 0 for a type without a size."""
        return BITS.get(self.element_type, 0)

    @property
    def size(self) -> int:
        """Bytes of all elements, rounded up."""
        return (self.elements * self.bits + 7) // 8


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of an input: an operation by its index, and one of its outputs."""

    operation: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `type` and `opset` are OpenVINO's, such as `Convolution`, `opset1`; `name` is its own.

    `value` holds a constant's elements if they are few (axes, limits, a scalar), else None.
    """

    index: int
    name: str
    type: str
    inputs: tuple[Source, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Value] = field(default_factory=dict)
    opset: str = "opset1"
    value: tuple[float, ...] | None = None

    def integers(self, attribute: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return a list-of-integers attribute (strides, pads, axes); `default` if missing."""
        value = self.attributes.get(attribute, default)
        return tuple(int(each) for each in value) if isinstance(value, tuple) else default


@dataclass(frozen=True)
class Graph:
    """All operations of a model in topological order; `Operation.index` is the position."""

    name: str
    operations: tuple[Operation, ...]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def tensor(self, source: Source) -> Tensor:
        """Return the type of a value."""
        return self.operations[source.operation].outputs[source.output]

    def input_tensors(self, operation: Operation) -> tuple[Tensor, ...]:
        """Return the types of an operation's inputs."""
        return tuple(self.tensor(source) for source in operation.inputs)

    def producer(self, operation: Operation, position: int) -> Operation | None:
        """Return the operation that computes input `position`; None if there is no such input."""
        if position >= len(operation.inputs):
            return None
        return self.operations[operation.inputs[position].operation]

    def consumers(self, operation: Operation) -> tuple[Operation, ...]:
        """Return the operations that read any output of this one, in order, without duplicates."""
        return tuple(self.operations[index] for index in self._consumers[operation.index])

    def of_type(self, *types: str) -> Iterator[Operation]:
        """Return the operations of these types."""
        return (operation for operation in self.operations if operation.type in types)

    @property
    def inputs(self) -> tuple[Operation, ...]:
        """The parameters of the model."""
        return tuple(self.of_type("Parameter"))

    @property
    def results(self) -> tuple[Operation, ...]:
        """The results of the model."""
        return tuple(self.of_type("Result"))

    @property
    def dynamic(self) -> tuple[Operation, ...]:
        """The operations with an output of dynamic shape."""
        return tuple(each for each in self if not all(tensor.static for tensor in each.outputs))

    @cached_property
    def constant_like(self) -> frozenset[int]:
        """Operations that depend on no input: constants, and operations folded at compilation."""
        constants: set[int] = set()
        variable = ("Parameter", "ReadValue", "Assign", "Result", "RandomUniform")
        for each in self.operations:
            if each.type == "Constant":
                constants.add(each.index)
            elif each.type not in variable and each.inputs:
                of_shapes = each.type in ("ShapeOf", "PriorBox", "PriorBoxClustered")
                known = of_shapes and all(tensor.static for tensor in self.input_tensors(each))
                if known or all(source.operation in constants for source in each.inputs):
                    constants.add(each.index)
        return frozenset(constants)

    @cached_property
    def _consumers(self) -> tuple[tuple[int, ...], ...]:
        readers: list[dict[int, None]] = [{} for _ in self.operations]
        for each in self.operations:
            for source in each.inputs:
                readers[source.operation][each.index] = None
        return tuple(tuple(each) for each in readers)
