"""Models with outputs that have no tensor of their own in OpenVINO's CPU runtime, and neighbours that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as ops

Shape = Sequence[int | ov.Dimension]
Rest = Callable[[ov.Output], list[ov.Node]]


def _parameter(shape: Shape, element_type: ov.Type = ov.Type.f32, name: str = "x") -> ov.op.Parameter:
    return ops.parameter(ov.PartialShape(list(shape)), element_type, name=name)


def _model(x: ov.Node, outputs: Sequence[ov.Output | ov.Node], *more: ov.Node) -> ov.Model:
    return ov.Model([ops.result(output) for output in outputs], [x, *more], "shared")


def einsum(shape: Shape) -> ov.Model:
    """Return an identity Einsum between computed outputs."""
    x = _parameter(shape)
    letters = "abcd"[: len(shape)]
    unchanged = ops.einsum([x], f"{letters}->{letters}")
    return _model(x, [ops.exp(x), unchanged, ops.add(x, ops.constant(np.float32(1)))])


def chosen_branch(shape: Shape) -> ov.Model:
    """Return an If with a constant condition whose branch forwards its input."""
    x, same, other = _parameter(shape), _parameter(shape), _parameter(shape)
    choice = ops.if_op(ops.constant(np.array(True)))
    choice.set_then_body(ov.Model([ops.result(same)], [same]))
    choice.set_else_body(ov.Model([ops.result(ops.exp(other))], [other]))
    choice.set_input(x.output(0), same, other)
    choice.set_output(choice.get_then_body().results[0], choice.get_else_body().results[0])
    return _model(x, [choice.output(0), ops.exp(x)])


def counted_loop(shape: Shape) -> ov.Model:
    """Return a two-iteration Loop whose body forwards its input."""
    x, inner = _parameter(shape), _parameter(shape)
    again = ops.constant(np.array(True))
    body = ov.Model([ops.result(inner), ops.result(ops.constant(np.array(True)))], [inner], "body")
    loop = ops.loop(ops.constant(np.array(2)), again)
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(inner, x.output(0), body.results[0].output(0))
    out = loop.get_iter_value(body.results[0].output(0), -1)
    return _model(x, [out, ops.exp(x)])


def direct(shape: Shape) -> ov.Model:
    """Return an input that is two outputs unchanged, and also computed from."""
    x = _parameter(shape)
    return _model(x, [x, ops.exp(x), x])


def crossed(shape: Shape) -> ov.Model:
    """Return two swapped inputs, and their sum."""
    x, y = _parameter(shape), _parameter(shape, name="y")
    return _model(x, [y, x, ops.add(x, y)], y)


def shown_twice(shape: Shape) -> ov.Model:
    """Return one value as two outputs, and the same value computed by another operation."""
    x = _parameter(shape)
    value = ops.exp(x)
    return _model(x, [value, ops.negative(x), value, ops.exp(x)])


def constants(shape: Shape) -> ov.Model:
    """Return outputs that are constants, one of them twice and one empty, and one that is an input."""
    x = _parameter(shape)
    ones = ops.constant(np.arange(3, dtype=np.float32))
    return _model(x, [ones, x, ones, ops.constant(np.zeros((0, 2), np.float32)), ops.exp(x)])


def bystanders(shape: Shape) -> ov.Model:
    """Return an unchanged input read by operations of many kinds."""
    x = _parameter(shape)
    letters = "abcd"[: len(shape)]
    unchanged = ops.einsum([x], f"{letters}->{letters}")
    zeros = ops.constant(np.zeros(len(shape), np.int64))
    ones = ops.constant(np.ones(len(shape), np.int64))
    twos = ops.constant(np.full(len(shape), 2))
    first = ops.constant(np.zeros(1, np.int64))
    top = ops.topk(x, ops.constant(np.int64(1)), 0, "max", "value", index_element_type="i32")
    permuted = ops.einsum([x], f"{letters}->{letters[::-1]}")
    return _model(
        x,
        [
            ops.convert(x, "i32"),
            permuted,
            ops.pad(x, zeros, ones, "constant", ops.constant(np.float32(7))),
            unchanged,
            ops.tile(x, twos),
            top.output(0),
            ops.gather(x, first, ops.constant(np.int64(0))),
            ops.add(x, ops.constant(np.float32(1))),
        ],
    )


MODELS: dict[str, Callable[[Shape], ov.Model]] = {
    each.__name__: each
    for each in (
        einsum,
        chosen_branch,
        counted_loop,
        direct,
        crossed,
        shown_twice,
        constants,
        bystanders,
    )
}


def handed_on(element_type: ov.Type, shape: Shape) -> ov.Model:
    """Return an input of this type that is an output, also read by another operation."""
    x = _parameter(shape, element_type)
    return _model(x, [x, ops.shape_of(x)])
