"""Small models, each with one feature that the real NPU's compiler refuses, or may refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset5, opset8, opset11, opset12
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


EDGES = np.array([0.2, 0.5], np.float32)


def searched(values: Any) -> Any:
    """Return the place of each value between two edges: an operation that the compiler does not import."""
    return ops.search_sorted(ops.constant(EDGES), values)


def with_unsupported() -> ov.Model:
    """Return a model with one layer that the compiler does not import, `check`, between others."""
    x = data(1, 8)
    check = searched(ops.reshape(ops.relu(x), ops.constant([8]), special_zero=False))
    check.set_friendly_name("check")
    return model(ops.tanh(ops.convert(check, "f32")), x, name="with_unsupported")


def folded() -> ov.Model:
    """Return the same operation where it depends on no input."""
    x = data(1, 3)
    places = searched(ops.constant(np.array([0, 0.3, 1], np.float32)))
    return model(ops.add(x, ops.convert(places, "f32")), x)


def branch() -> ov.Model:
    """Return the same operation in the body of an If, `choice`."""
    condition, x = data(kind=np.bool_, name="condition"), data(6)

    def body(operation: Callable[[Any], Any]) -> tuple[Any, ov.Model]:
        inner = ops.parameter([6], np.float32, name="inner")
        return inner, ov.Model([operation(inner)], [inner], "body")

    then_input, then_body = body(lambda inner: ops.convert(searched(inner), "f32"))
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


def older_gather() -> ov.Model:
    """Return an operation of a type that the compiler imports, in a version that nothing converts."""
    places = ops.constant(np.array([[0], [2]], np.int64))
    return unary(lambda x: opset5.gather_nd(x, places), 3, 4)


def recurrent(kind: str, lengths: Any = (3, 3), **attributes: Any) -> ov.Model:
    """Return a GRUSequence or an LSTMSequence of two sequences; without `lengths` these are an input."""
    gates = {"gru": 3, "lstm": 4}[kind]
    x, state = data(2, 3, 4), ops.constant(np.zeros((2, 1, 5), np.float32))
    weights = [ops.constant(np.zeros((1, gates * 5, *size), np.float32)) for size in ((4,), (5,), ())]
    given = data(2, kind=np.int32, name="lengths")
    inputs = [x] if lengths else [x, given]
    ends = ops.constant(np.array(lengths, np.int32)) if lengths else given
    make = getattr(ops, f"{kind}_sequence")
    states = [state] if kind == "gru" else [state, state]
    sequence = make(x, *states, ends, *weights, 5, "forward", **attributes)
    return ov.Model([sequence.output(0)], inputs, kind)


def quantised(levels: int = 256, *, falling: bool = False) -> ov.Model:
    """Return a FakeQuantize."""
    ends = [ops.constant(np.float32(each)) for each in (-1, 1, *((1, -1) if falling else (-1, 1)))]
    return unary(lambda x: ops.fake_quantize(x, *ends, levels), 1, 4)


def beyond_f16() -> ov.Model:
    """Return a product whose results are beyond f16."""
    return unary(lambda x: ops.multiply(x, ops.constant(np.float32(1e6))), 1, 4)


def convolution(stride: int, auto_pad: str) -> ov.Model:
    """Return a convolution with padding that is computed."""
    weights = ops.constant(np.ones((2, 3, 3, 3), np.float32))
    return unary(
        lambda x: ops.convolution(x, weights, [stride] * 2, [0, 0], [0, 0], [1, 1], auto_pad), 1, 3, 8, 8
    )


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
