"""Keep products inside their inputs: a dynamic inner dimension must equal that of the weights.

OpenVINO's CPU runtime (2026.4) does not compare them when it runs a product with constant weights. It reads
as many numbers as the weights have, even past the end of a shorter input. Here such an input is reshaped to
the weights' size. That copies nothing, and OpenVINO refuses it for any other size.

The state of a recurrent cell has other uses too. Its dimension must stay dynamic: if static, OpenVINO fuses
more, and the last bits differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

from softnpu.emulator.common.model_bodies import all_bodies


class _Product(NamedTuple):
    """The position of an input, its inner axis, and the required size of that axis."""

    position: int
    axis: int
    size: int


_STATE: Final = 1
_RECURRENT: Final = {
    "RNNCell": ((0, 2), (1, 3)),
    "GRUCell": ((0, 2), (1, 3)),
    "AUGRUCell": ((0, 2), (1, 3)),
    "LSTMCell": ((0, 3), (1, 4)),
    "RNNSequence": ((0, 3), (1, 4)),
    "GRUSequence": ((0, 3), (1, 4)),
    "AUGRUSequence": ((0, 3), (1, 4)),
    "LSTMSequence": ((0, 4), (1, 5)),
}
"""Positions of the factor and of its weights, whose last dimensions agree."""


def guard(model: ov.Model) -> None:
    """Insert the guards into a newly read model and its bodies."""
    if not model.is_dynamic() and not any(body.is_dynamic() for body in all_bodies(model)):
        return
    for part in [model, *all_bodies(model)]:
        products = [(node, product) for node in part.get_ordered_ops() for product in _products(node)]
        for node, product in products:
            _guard(node, product)
        if products:
            part.validate_nodes_and_infer_types()


def _products(node: Any) -> Iterator[_Product]:
    kind = node.get_type_name()
    if kind == "MatMul":
        attributes = node.get_attributes()
        shapes = [node.get_input_partial_shape(position) for position in (0, 1)]
        if any(shape.rank.is_dynamic for shape in shapes):
            return
        transposed = bool(attributes["transpose_a"]), not attributes["transpose_b"]
        axes = [
            -2 if swapped and shape.rank.get_length() > 1 else -1
            for swapped, shape in zip(transposed, shapes, strict=True)
        ]
        inner = [shape[axis] for shape, axis in zip(shapes, axes, strict=True)]
        for ours, other in ((0, 1), (1, 0)):
            if inner[ours].is_dynamic and inner[other].is_static:
                yield _Product(ours, axes[ours], inner[other].get_length())
    for position, weights in _RECURRENT.get(kind, ()):
        shape, sizes = (node.get_input_partial_shape(each) for each in (position, weights))
        if shape.rank.is_static and shape[-1].is_dynamic and sizes.rank.is_static and sizes[-1].is_static:
            yield _Product(position, -1, sizes[-1].get_length())


def _guard(node: Any, product: _Product) -> None:
    source = node.input_value(product.position)
    pattern = np.zeros(source.get_partial_shape().rank.get_length(), np.int64)  # 0: unchanged
    pattern[product.axis] = product.size
    reshaped = opset13.reshape(source, opset13.constant(pattern), special_zero=True)
    reshaped.set_friendly_name(f"{node.get_friendly_name()}/inner {product.position}")
    if node.get_type_name() in _RECURRENT and product.position == _STATE:
        reshaped = _all_of(reshaped, source)
    node.input(product.position).replace_source_output(reshaped.output(0))


def _all_of(reshaped: Any, source: ov.Output) -> Any:
    """Return `reshaped` with a last dimension known only at run time: that of `source`."""
    last = opset13.constant(np.array([-1]))
    length = opset13.gather(opset13.shape_of(source), last, opset13.constant(0))
    return opset13.slice(
        reshaped, opset13.constant(np.array([0])), length, opset13.constant(np.array([1])), last
    )
