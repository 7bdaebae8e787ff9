"""Models with empty constants: a reshape to a scalar has one, others may too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset13 as ops

_TO_SCALAR = np.zeros(0, np.int64)


def only_constant() -> ov.Model:
    """Return a model with no other constant, so that it has no weights at all."""
    x = ops.parameter([1, 1], ov.Type.f32, name="x")
    return ov.Model([ops.exp(ops.reshape(x, ops.constant(_TO_SCALAR), False))], [x], "only_constant")


def sum_to_scalar() -> ov.Model:
    """Return a scalar sum of products behind weights, as in text recognisers."""
    x = ops.parameter([2, 64], ov.Type.f32, name="x")
    weights = ops.constant(np.random.default_rng(3).random((2, 64), np.float32))
    total = ops.reduce_sum(ops.multiply(x, weights), ops.constant(np.array([0, 1])), True)
    return ov.Model([ops.exp(ops.reshape(total, ops.constant(_TO_SCALAR), False))], [x], "sum_to_scalar")


def several() -> ov.Model:
    """Return several of other types and shapes: an output, part of a concatenation, in a branch of an If."""
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    flag = ops.parameter([], ov.Type.boolean, name="flag")
    nothing = ops.constant(np.zeros((0, 3), np.float32))
    joined = ops.concat([x, nothing, ops.constant(np.arange(3, dtype=np.float32).reshape(1, 3))], 0)
    one, other = ops.parameter([2, 3], ov.Type.f32), ops.parameter([2, 3], ov.Type.f32)
    choice = ops.if_op(flag)
    rows = ops.concat([ops.constant(np.zeros((0, 3), np.float32)), ops.negative(one)], 0)
    choice.set_then_body(ov.Model([ops.result(rows)], [one]))
    choice.set_else_body(ov.Model([ops.result(ops.exp(other))], [other]))
    choice.set_input(x.output(0), one, other)
    choice.set_output(choice.get_then_body().results[0], choice.get_else_body().results[0])
    return ov.Model([ops.result(joined), ops.result(choice.output(0))], [x, flag], "several")


def narrow() -> ov.Model:
    """Return a 16-bit one with no other constant: OpenVINO converts it to 32 bits."""
    x = ops.parameter([2, 0, 3], ov.Type.i16, name="x")
    return ov.Model([ops.add(x, ops.constant(np.zeros((2, 0, 3), np.int16)))], [x], "narrow")


MODELS: dict[str, Callable[[], ov.Model]] = {
    each.__name__: each for each in (only_constant, sum_to_scalar, several, narrow)
}
