"""Small models, each with one feature that the real NPU's compiler refuses, or may refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset8, opset10, opset11, opset12, opset16
from openvino import opset15 as ops

Dims = list[int | ov.Dimension]


def data(*dims: int | ov.Dimension, kind: Any = np.float32, name: str = "x") -> Any:
    """Return an input."""
    parameter = ops.parameter(ov.PartialShape(list(dims)), kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


def model(output: Any, *inputs: Any, name: str = "model") -> ov.Model:
    """Return a model with one output."""
    return ov.Model([output], list(inputs), name)


def unary(operation: Callable[[Any], Any], *dims: int | ov.Dimension, kind: Any = np.float32) -> ov.Model:
    """Return a model of one operation."""
    x = data(*dims, kind=kind)
    return model(operation(x), x)


def with_is_nan() -> ov.Model:
    """Return a model with one layer that the compiler does not import, `check`, between others."""
    x = data(1, 8)
    positive = ops.relu(x)
    check = opset10.is_nan(positive)
    check.set_friendly_name("check")
    return model(ops.tanh(ops.select(check, ops.constant(np.float32(0)), positive)), x, name="with_is_nan")


def folded() -> ov.Model:
    """Return the same operation where it depends on no input."""
    x = data(1, 4)
    mask = opset10.is_nan(ops.constant(np.array([[1, np.nan, 2, 3]], np.float32)))
    return model(ops.select(mask, ops.constant(np.float32(0)), x), x)


def branch() -> ov.Model:
    """Return the same operation in the body of an If, `choice`."""
    condition, x = data(kind=np.bool_, name="condition"), data(2, 3)

    def body(operation: Callable[[Any], Any]) -> tuple[Any, ov.Model]:
        inner = ops.parameter([2, 3], np.float32, name="inner")
        return inner, ov.Model([operation(inner)], [inner], "body")

    then_input, then_body = body(lambda inner: ops.convert(opset10.is_nan(inner), "f32"))
    else_input, else_body = body(ops.relu)
    choice = ops.if_op(condition)
    choice.set_friendly_name("choice")
    choice.set_then_body(then_body)
    choice.set_else_body(else_body)
    choice.set_input(x.output(0), then_input, else_input)
    choice.set_output(then_body.results[0], else_body.results[0])
    return ov.Model([choice.output(0)], [condition, x], "branch")


def pad(begin: int) -> ov.Model:
    """Return a pad of `begin` in front of each row."""
    ends = ops.constant(np.array([0, 1], np.int64))
    return unary(
        lambda x: opset12.pad(
            x, ops.constant(np.array([0, begin], np.int64)), ends, "constant", ops.constant(np.float32(0))
        ),
        2,
        8,
    )


def resize(mode: str) -> ov.Model:
    """Return a picture, enlarged twofold."""
    return unary(
        lambda x: opset11.interpolate(
            x, ops.constant(np.array([16, 16], np.int64)), mode, "sizes", axes=np.array([2, 3], np.int64)
        ),
        1,
        3,
        8,
        8,
    )


def newer_one_hot() -> ov.Model:
    """Return an OneHot of opset 16, which nothing converts to opset 1."""
    on, off = ops.constant(np.float32(1)), ops.constant(np.float32(0))
    return unary(lambda x: opset16.one_hot(x, ops.constant(4), on, off, -1, "normalize"), 3, kind=np.int64)


def slice_up_to_an_input() -> ov.Model:
    """Return a slice whose end is an input."""
    x, stop = data(8), data(1, kind=np.int64, name="stop")
    one = ops.constant(np.array([1], np.int64))
    return model(opset8.slice(x, ops.constant(np.array([0], np.int64)), stop, one), x, stop)


def through_six_dimensions() -> ov.Model:
    """Return a model with six dimensions between an input and an output of two."""
    x = data(1, 4)
    high = ops.reshape(x, ops.constant([1, 1, 1, 1, 2, 2]), special_zero=False)
    turned = ops.transpose(high, ops.constant([0, 1, 2, 3, 5, 4]))
    return model(ops.reshape(turned, ops.constant([1, 4]), special_zero=False), x)


def state(length: int | ov.Dimension) -> ov.Model:
    """Return a state to which each inference appends, or of a fixed size."""
    x = data(1, 2)
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([length, 2]), ov.Type.f32, "memory"
    variable = ov.op.util.Variable(info)
    before = ops.read_value(ops.constant(np.zeros((1, 2), np.float32)), variable)
    after = ops.concat([before, x], 0) if isinstance(length, ov.Dimension) else ops.add(before, x)
    kept = ops.assign(after, variable)
    return ov.Model([ops.result(ops.relu(after))], [kept], [x], "state")
