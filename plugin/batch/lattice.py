"""The lattice of states of a tensor, for the data-flow analysis in `tracking`.

Every operation is compared at two batches, 1 and `PROBE`: the axis whose length differs has the samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino._pyopenvino import TensorVector

PROBE = 97
"""The other batch: a prime that divides hardly any dimension of a real model."""

Shape = tuple[int, ...]
_SMALL = 4096
_DEPTH = 8


@dataclass(frozen=True)
class Uniform:
    """The same for every sample and every batch: constants, shared inputs, and their results."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """Numbers that depend on the number of samples, not on their content: shapes and their parts.

    `mask` marks the dependent elements; None: any may depend.
    """

    mask: npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class Samples:
    """Sample i is the i-th of equal parts of `axis`, and depends only on sample i of the inputs."""

    axis: int


@dataclass(frozen=True)
class Mixed:
    """A value that depends on several samples. Harmless as long as no operation reads it."""

    why: str


State = Uniform | Sizes | Samples | Mixed


class Mixing(Exception):
    """An operation makes the result of one sample depend on others; the text says how."""


class Unknown(Exception):
    """The batch behaviour of an operation is unknown."""


@dataclass(frozen=True)
class ShapePair:
    """The shape of one tensor at both batches."""

    one: Shape
    many: Shape

    @property
    def rank(self) -> int:
        return len(self.one)

    @cached_property
    def growing(self) -> int | None:
        """The only axis that grows `PROBE`-fold with `PROBE` samples; None without such an axis."""
        if len(self.one) != len(self.many):
            return None
        differ = [
            axis for axis, (one, many) in enumerate(zip(self.one, self.many, strict=True)) if one != many
        ]
        if len(differ) != 1 or self.many[differ[0]] != PROBE * self.one[differ[0]]:
            return None
        return differ[0]

    def before(self, axis: int) -> int:
        """Return the product of the dimensions before an axis."""
        return math.prod(self.one[:axis])


class Operation:
    """One operation at both batches, with the states of its inputs: the argument of rules.

    `one` and `many` are the same `openvino.Node` in two clones of the model.
    """

    def __init__(self, one: Any, many: Any, states: Sequence[State]) -> None:
        self.node = one
        self.kind: str = one.get_type_name()
        self.name: str = one.get_friendly_name()
        self.states = list(states)
        self.inputs = [
            ShapePair(_shape(a), _shape(b)) for a, b in zip(one.inputs(), many.inputs(), strict=True)
        ]
        self.outputs = [
            ShapePair(_shape(a), _shape(b)) for a, b in zip(one.outputs(), many.outputs(), strict=True)
        ]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes as OpenVINO writes them."""
        return dict(self.node.get_attributes())

    @property
    def samples(self) -> list[tuple[int, int]]:
        """Inputs that hold samples: number and axis."""
        return [(at, state.axis) for at, state in enumerate(self.states) if isinstance(state, Samples)]

    def axis_of(self, index: int) -> int | None:
        """Return the axis of the samples in an input; None if it holds none."""
        state = self.states[index] if index < len(self.states) else Uniform()
        return state.axis if isinstance(state, Samples) else None

    def only_samples_in(self, *allowed: int) -> None:
        """Raise `Mixing` when another input holds samples or depends on their number."""
        for index, state in enumerate(self.states):
            if index not in allowed and not isinstance(state, Uniform):
                raise Mixing(f"its input {index} depends on the batch")

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """Return the value of a small input that is constant or computed from constants; else None."""
        if index >= len(self.states) or not isinstance(self.states[index], Uniform):
            return None
        return _value(self.node.input_value(index), _DEPTH)

    def axes(self, index: int, rank: int) -> list[int]:
        """Return a constant input as axes of a tensor of `rank` dimensions. Raises `Unknown` for others."""
        value = self.constant(index)
        if value is None:
            raise Unknown(f"its input {index} is not a constant")
        return [int(axis) % rank for axis in value.reshape(-1)] if rank else []

    def attribute_axis(self, rank: int, name: str = "axis") -> int:
        """Return an attribute as an axis."""
        return int(self.attributes[name]) % rank


def _value(port: Any, depth: int) -> npt.NDArray[Any] | None:
    """Return the value of a port that depends on no model input except through shapes; else None."""
    node = port.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return np.asarray(node.data)
    if kind == "ShapeOf":
        return np.array(_shape(node.input_value(0)))
    if not depth or any(port.get_partial_shape().is_dynamic for port in node.outputs()):
        return None
    if any(math.prod(_shape(port)) > _SMALL for port in node.outputs()):
        return None
    values = [_value(value, depth - 1) for value in node.input_values()]
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    kinds = [value.get_element_type() for value in node.input_values()]
    computed = evaluated(node, [tensor(value, kind) for value, kind in zip(known, kinds, strict=True)])
    index: int = port.get_index()
    return computed[index]


def tensor(value: npt.NDArray[Any], kind: Any) -> ov.Tensor:
    """Return a new tensor of an element type."""
    return ov.Tensor(np.array(value, dtype=kind.to_dtype(), order="C"))


def evaluated(node: Any, inputs: Sequence[ov.Tensor]) -> list[npt.NDArray[Any] | None]:
    """Return the outputs of an operation with static shapes; None for each that OpenVINO cannot evaluate."""
    outputs = TensorVector(
        [ov.Tensor(port.get_element_type(), ov.Shape(port.get_shape())) for port in node.outputs()]
    )
    try:
        done = node.evaluate(outputs, TensorVector(list(inputs)))
    except RuntimeError:
        done = False
    return [np.array(output.data) if done else None for output in outputs]


def _shape(port: Any) -> Shape:
    partial = port.get_partial_shape()
    if partial.is_dynamic:
        return (-1,)  # data-dependent; nothing grows with it
    return tuple(partial.to_shape())
