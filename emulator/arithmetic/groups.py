"""The groups of a model: operations that the device executes as one, and rounds once behind the last.

A group is a sum of products (or any other operation), the factor and the bias of its channels, an activation,
and the quantisation of the output. Values of shapes and constants belong to the compiler, and to no group.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator

import openvino as ov

from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic.dialect import BEFORE_RMS, REDUCE_SQUARE, RMS_EPSILON

Name = str  # of an operation, unique in its model

_REQUANTISING = frozenset({*types.MULTIPLIERS, "Add", "AvgPool", "Multiply"})
_OF_NO_INPUT = frozenset({"RandomUniform", "ReadValue"})
"""Operations whose results do not follow from their inputs: they vary between inferences."""
_NORMALISING = frozenset({"BatchNormInference"})
"""A factor and a bias of each channel, as OpenVINO's transformations lower it."""
_ROOTS = frozenset({"Divide", "Power"})


class Origin(enum.Enum):
    """The source of an operation's data."""

    CONSTANTS = "constants"
    SHAPES = "shapes"
    DATA = "data"


def origins(model: ov.Model) -> dict[Name, Origin]:
    """Return the source of data of each operation of a model."""
    known: dict[Name, Origin] = {}
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        inputs = {known[port.get_node().get_name()] for port in operation.input_values()}
        if kind == "Constant":
            origin = Origin.CONSTANTS
        elif kind == "ShapeOf":
            origin = Origin.SHAPES
        elif not inputs or Origin.DATA in inputs or kind in _OF_NO_INPUT:
            origin = Origin.DATA
        else:
            origin = Origin.SHAPES if Origin.SHAPES in inputs else Origin.CONSTANTS
        known[operation.get_name()] = origin
    return known


def readers(operation: ov.Node) -> list[ov.Node]:
    """Return the operations that read the values of the first result."""
    after = [port.get_node() for port in operation.output(0).get_target_inputs()]
    return [each for each in after if each.get_type_name() != "ShapeOf"]


def kept_in_f32(model: ov.Model, names: frozenset[str]) -> set[Name]:
    """Return the operations that a list of types and patterns keeps in f32."""
    f32_names = set()
    for operation in model.get_ordered_ops():
        if operation.get_type_name() in names:
            f32_names.add(operation.get_name())
        if operation.get_type_name() == "Add":
            if RMS_EPSILON in names and _is_rms_epsilon(operation):
                f32_names.add(operation.get_name())
            if BEFORE_RMS in names and any(_squares_mean(reader) for reader in readers(operation)):
                f32_names.add(operation.get_name())
        if operation.get_type_name() == "Power" and REDUCE_SQUARE in names:
            f32_names |= {each.get_name() for each in _reduce_square(operation)}
        if "RMS" in names and _squares_mean(operation):
            f32_names |= {each.get_name() for each in _rms(operation)}
    return f32_names


def chain(head: ov.Node, origin: dict[Name, Origin], in_f32: set[Name]) -> list[ov.Node]:
    """Return the group that begins with `head`, in order; `head` alone if nothing can follow."""
    group = [head]
    if head.get_name() in in_f32:
        return group
    kind = head.get_type_name()

    def following(accepted: frozenset[str]) -> ov.Node | None:
        after = readers(group[-1])
        if len(after) != 1 or after[0].get_type_name() not in accepted or after[0].get_name() in in_f32:
            return None
        return after[0]

    if kind in types.MULTIPLIERS:
        has_weights = origin[head.input_value(1).get_node().get_name()] is not Origin.DATA
        folded = _NORMALISING if has_weights else frozenset[str]()
        group += filter(None, [following(folded)])
        factor = following(frozenset({"Multiply"}))
        if has_weights and factor is not None and _is_of_channels(head, group[-1], factor, origin):
            group.append(factor)
        bias = following(frozenset({"Add", "Subtract"}))
        if bias is not None and _is_of_channels(head, group[-1], bias, origin):
            group.append(bias)
        group += filter(None, [following(folded)])
        swish = _swish(group[-1], in_f32)
        activation = following(types.ACTIVATIONS)
        if swish is not None:
            group += swish
        elif activation is not None and _is_unary(activation, group[-1], origin):
            group.append(activation)
    elif following(frozenset({"Relu"})) is not None:
        group.append(readers(head)[0])
    if kind in _REQUANTISING:
        quantised = following(frozenset({types.QUANTISED}))
        if quantised is not None and quantised.input_value(0).get_node() == group[-1]:
            group.append(quantised)
    return group


def _is_of_channels(head: ov.Node, before: ov.Node, operation: ov.Node, origin: dict[Name, Origin]) -> bool:
    """Return whether an operation applies one constant, or one per channel, to the result of `head`."""
    others = [port for port in operation.input_values() if port.get_node() != before]
    if len(others) != 1 or origin[others[0].get_node().get_name()] is Origin.DATA:
        return False
    if operation.get_type_name() == "Subtract" and operation.input_value(0).get_node() != before:
        return False
    shape, result = others[0].partial_shape, head.output(0).partial_shape
    if shape.is_dynamic or result.rank.is_dynamic or len(shape) > len(result):
        return False
    axis = len(result) - 1 if head.get_type_name() == "MatMul" else 1
    dims: list[int] = [1] * (len(result) - len(shape)) + [dim.get_length() for dim in shape]
    return math.prod(dims) == dims[axis]


def _is_unary(activation: ov.Node, before: ov.Node, origin: dict[Name, Origin]) -> bool:
    others = [port.get_node() for port in activation.input_values() if port.get_node() != before]
    return all(origin[other.get_name()] is not Origin.DATA for other in others)


def _swish(before: ov.Node, in_f32: set[Name]) -> list[ov.Node] | None:
    """Return the Sigmoid and the Multiply of x * sigmoid(x), if `before` has no other use."""
    after = readers(before)
    kinds = {each.get_type_name(): each for each in after}
    if len(after) != 2 or kinds.keys() != {"Sigmoid", "Multiply"}:
        return None
    sigmoid, product = kinds["Sigmoid"], kinds["Multiply"]
    if readers(sigmoid) != [product] or {sigmoid.get_name(), product.get_name()} & in_f32:
        return None
    return [sigmoid, product]


# ------------------------------------------------------------ patterns of the list of layers in f32


def _is_rms_epsilon(add: ov.Node) -> bool:
    after = readers(add)
    means = [port.get_node().get_type_name() == "ReduceMean" for port in add.input_values()]
    return any(means) and bool(after) and after[0].get_type_name() == "Sqrt"


def _squares_mean(square: ov.Node) -> bool:
    """Return whether an operation is the square of a decomposed root mean square, or a fused one."""
    kind = square.get_type_name()
    if kind == "RMS":
        return True
    inputs = [port.get_node() for port in square.input_values()]
    if kind != "Power" and not (kind == "Multiply" and inputs[0] == inputs[1]):
        return False
    return any(
        mean.get_type_name() == "ReduceMean" and any(_is_rms_epsilon(add) for add in _adds(mean))
        for mean in readers(square)
    )


def _adds(operation: ov.Node) -> list[ov.Node]:
    return [each for each in readers(operation) if each.get_type_name() == "Add"]


def _rms(square: ov.Node) -> Iterator[ov.Node]:
    yield square
    for mean in readers(square):
        for add in _adds(mean):
            yield from (mean, add, *readers(add))
            for root in readers(add):
                inverse = [each for each in readers(root) if each.get_type_name() in _ROOTS]
                yield from inverse
                for each in inverse:
                    yield from (after for after in readers(each) if after.get_type_name() == "Multiply")


def _reduce_square(power: ov.Node) -> Iterator[ov.Node]:
    exponent = power.input_value(1).get_node()
    if exponent.get_type_name() != "Constant" or any(exponent.data.reshape(-1) != 2):
        return
    after = readers(power)
    if len(after) != 1 or after[0].get_type_name() != "ReduceSum":
        return
    yield from (power, after[0], *(each for each in readers(after[0]) if each.get_type_name() == "Sqrt"))
