"""The work of a layer: floating-point operations and bytes, from the shapes of the model alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import openvino as ov

_WEIGHTS_AXES: Final = {"Convolution": 1, "GroupConvolution": 2}
"""Axis of the input channels of one group in the weights; the kernel axes follow."""


@dataclass(frozen=True)
class Work:
    """Operations (a multiply-add counts as two), bytes read and written without caches."""

    operations: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes if self.bytes else 0.0


def work_of(model: ov.Model) -> dict[str, Work]:
    """Return the work of every operation by friendly name; 0 operations if only its sizes are known."""
    work = {}
    for node in model.get_ordered_ops():
        if all(output.get_partial_shape().is_static for output in node.outputs()):
            sizes = [_bytes(port.get_source_output()) for port in node.inputs()]
            sizes += [_bytes(output) for output in node.outputs()]
            work[node.get_friendly_name()] = Work(_operations(node), float(sum(sizes)))
    return work


def parameters_of(model: ov.Model) -> Mapping[str, tuple[int, int]]:
    """Return elements and bytes of all constants by element type."""
    counts: dict[str, tuple[int, int]] = {}
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            name = node.get_element_type().get_type_name()
            elements, size = counts.get(name, (0, 0))
            count = math.prod(node.get_output_shape(0))
            counts[name] = (elements + count, size + node.get_byte_size())
    return dict(sorted(counts.items(), key=lambda item: -item[1][1]))


def _operations(node: Any) -> float:
    kind = node.get_type_name()
    if any(port.get_partial_shape().is_dynamic for port in node.inputs()):
        return 0.0
    if kind in _WEIGHTS_AXES:
        weights = node.get_input_partial_shape(1)
        return 2.0 * _elements(node.output(0)) * _product(weights, _WEIGHTS_AXES[kind])
    if kind == "MatMul":
        left = [
            dimension.get_length() for dimension in node.get_input_partial_shape(0) if dimension.is_static
        ]
        at = -2 if node.get_attributes()["transpose_a"] and len(left) > 1 else -1
        return 2.0 * _elements(node.output(0)) * int(left[at])
    return 0.0


def _product(shape: Any, begin: int) -> int:
    return math.prod(dimension.get_length() for dimension in list(shape)[begin:])


def _elements(output: Any) -> int:
    return math.prod(output.get_shape())


def _bytes(output: Any) -> float:
    if output.get_partial_shape().is_dynamic:
        return 0.0
    return float(math.prod(output.get_shape()) * output.get_element_type().bitwidth / 8)
