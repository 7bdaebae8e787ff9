"""Operations that the device executes in several steps, with an f16 result after each."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import openvino as ov
import openvino.opset13 as ops

_MOST_SUMMED: Final = 65504
"""A larger MVN is summed in parts, and the sums are f16: this is also the largest f16."""


def split(model: ov.Model, kept: frozenset[str]) -> None:
    """Replace attention and GroupNormalization by the operations that the compiler makes of them."""
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        if kind in kept:
            continue
        if kind == "ScaledDotProductAttention":
            _replace(operation, _attention(operation))
        elif kind == "GroupNormalization" and operation.output(0).partial_shape.is_static:
            _replace(operation, _group_normalisation(operation))


def decompose(model: ov.Model, kept: frozenset[str]) -> None:
    """Replace single-operation attention, and MVN over many elements, by their steps, unless kept."""
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        if kind in kept:
            continue
        if kind == "ScaledDotProductAttention":
            _replace(operation, _attention(operation))
        elif kind == "MVN" and _summed(operation) > _MOST_SUMMED:
            _replace(operation, _normalisation(operation))


def _replace(operation: ov.Node, result: ov.Node) -> None:
    result.set_friendly_name(operation.friendly_name)
    ov.utils.replace_node(operation, result)


def _attention(operation: ov.Node) -> ov.Node:
    """Return softmax(query * scale x key^T + mask) x value."""
    query, key, value, *rest = operation.input_values()
    kind = query.get_element_type()
    name = operation.friendly_name
    if len(rest) > 1:
        scale = rest[1]
    else:
        width = ops.convert(ops.gather(ops.shape_of(query), ops.constant([-1]), ops.constant(0)), kind)
        scale = ops.divide(_scalar(1, kind), ops.sqrt(width)).output(0)
    logits = ops.matmul(_named(ops.multiply(query, scale), f"{name}/scaled"), key, False, True)
    _named(logits, f"{name}/logits")
    mask = _mask(operation, query, key, rest, kind)
    if mask is not None:
        logits = _named(ops.add(logits, mask), f"{name}/masked")
    return ops.matmul(_named(ops.softmax(logits, -1), f"{name}/weights"), value, False, False)


def _mask(
    operation: ov.Node, query: ov.Output, key: ov.Output, rest: list[ov.Output], kind: ov.Type
) -> ov.Node | None:
    zero, none = _scalar(0, kind), _scalar(-math.inf, kind)
    if operation.get_attributes().get("causal"):
        lengths = [ops.gather(ops.shape_of(each), ops.constant(-2), ops.constant(0)) for each in (query, key)]
        rows, columns = (
            ops.range(ops.constant(np.int64(0)), length, ops.constant(np.int64(1)), "i64")
            for length in lengths
        )
        later = ops.greater(columns, ops.unsqueeze(rows, ops.constant([1])))
        return ops.select(later, none, zero)
    if not rest or (rest[0].partial_shape.is_static and not len(rest[0].partial_shape)):
        return None
    given = rest[0]
    return ops.select(given, zero, none) if given.get_element_type() == ov.Type.boolean else given.get_node()


def _group_normalisation(operation: ov.Node) -> ov.Node:
    """Return scale * MVN of each group + bias, as OpenVINO's GroupNormalizationDecomposition."""
    value, scale, bias = operation.input_values()
    attributes, name, shape = operation.get_attributes(), operation.friendly_name, list(value.get_shape())
    grouped = ops.reshape(value, ops.constant([shape[0], attributes["num_groups"], -1]), False)
    normal = ops.mvn(grouped, ops.constant([2]), True, attributes["epsilon"], "inside_sqrt")
    whole = ops.reshape(_named(normal, f"{name}/normal"), ops.constant(shape), False)
    channels = ops.constant([-1] + [1] * (len(shape) - 2))
    scaled = ops.multiply(whole, ops.reshape(scale, channels, False))
    return ops.add(_named(scaled, f"{name}/scaled"), ops.reshape(bias, channels, False))


def _axes(operation: ov.Node) -> list[int]:
    """Return the axes of an MVN; none if they are unknown at compilation."""
    if operation.get_input_size() == 1:  # of opset 1
        first = 1 if operation.get_attributes().get("across_channels") else 2
        rank = operation.output(0).partial_shape.rank
        return [] if rank.is_dynamic else list(range(first, rank.get_length()))
    axes = operation.input_value(1).get_node()
    return [int(axis) for axis in axes.data.reshape(-1)] if axes.get_type_name() == "Constant" else []


def _summed(operation: ov.Node) -> int:
    """Return the number of elements that one mean of an MVN is over; 0 if dynamic."""
    shape = operation.output(0).partial_shape
    dims = [] if shape.rank.is_dynamic else [shape[axis] for axis in _axes(operation)]
    return 0 if any(dim.is_dynamic for dim in dims) else math.prod(dim.get_length() for dim in dims)


def _normalisation(operation: ov.Node) -> ov.Node:
    """Compute the mean, then the sum of squares over the number of elements, which is what overflows."""
    value, axes = operation.input_value(0), ops.constant(_axes(operation))
    attributes, name, kind = operation.get_attributes(), operation.friendly_name, value.get_element_type()
    centred = _named(ops.subtract(value, _named(ops.reduce_mean(value, axes, True), f"{name}/mean")), name)
    if not attributes["normalize_variance"]:
        return centred
    _named(centred, f"{name}/centred")
    product = _named(ops.multiply(centred, centred), f"{name}/products")
    squares = _named(ops.reduce_sum(product, axes, True), f"{name}/squares")
    variance = _named(ops.multiply(squares, _scalar(1 / _summed(operation), kind)), f"{name}/variance")
    epsilon = _scalar(attributes["eps"], kind)
    if str(attributes.get("eps_mode", "inside_sqrt")).lower() == "inside_sqrt":
        deviation = ops.sqrt(_named(ops.add(variance, epsilon), f"{name}/stable"))
    else:
        deviation = ops.add(_named(ops.sqrt(variance), f"{name}/root"), epsilon)
    return ops.divide(centred, _named(deviation, f"{name}/deviation"))


def _scalar(value: float, kind: ov.Type) -> ov.Node:
    return ops.constant(value, kind)


def _named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node
