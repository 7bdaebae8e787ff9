"""Sizes that a model computes of known shapes are constants in its blob; nothing else is folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob.container import Section
from softnpu.emulator.compiler import known_sizes
from tests.support.compiler import Worker, WriteFiles

pytestmark = pytest.mark.quick


def _numbers(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


def _last_two(x: Any) -> Any:
    return ops.gather(ops.shape_of(x), _numbers(2, 3), _numbers(0))


def _flattened(x: Any) -> Any:
    """Return `x` with its last two dimensions in one, computed as exported models do."""
    last = ops.reduce_prod(_last_two(x), _numbers(0), keep_dims=True)
    first = ops.gather(ops.shape_of(x), _numbers(0, 1), _numbers(0))
    return ops.reshape(x, ops.concat([first, ops.add(last, _numbers(0))], 0), special_zero=False)


def _resized(x: Any) -> Any:
    doubled = ops.multiply(_last_two(x), _numbers(2, 2))
    return ops.interpolate(x, doubled, "nearest", "sizes", axes=_numbers(2, 3))


def _model(build: Callable[[Any], Any], *shape: int) -> ov.Model:
    x = ops.parameter(list(shape), np.float32, name="x")
    x.output(0).set_names({"x"})
    y = build(x)
    y.output(0).set_names({"y"})
    return ov.Model([y], [x], "sizes")


def _kinds(model: ov.Model) -> list[str]:
    return sorted({operation.get_type_name() for operation in model.get_ops()})


def _results(model: ov.Model) -> bytes:
    values = np.random.default_rng(1).standard_normal((1, 3, 4, 6), np.float32)
    return np.ascontiguousarray(ov.Core().compile_model(model, "CPU")(values)[0]).tobytes()


def test_the_blob_of_requested_shapes_has_no_computed_sizes(worker: Worker, write: WriteFiles) -> None:
    files = write(_model(_resized, -1, 3, -1, -1))
    made = worker.blob(files.job(shapes={"x": (1, 3, 4, 6)}), files.fds)
    assert b'type="ShapeOf"' not in bytes(made.reader.read(Section.IR))
    assert made.meta.outputs[0].shape == (1, 3, 8, 12)


def test_folding_changes_neither_results_nor_ports() -> None:
    plain, folded = (_model(_resized, 1, 3, 4, 6) for _ in range(2))
    known_sizes.fold(folded)
    assert _kinds(plain) == [
        "Constant",
        "Gather",
        "Interpolate",
        "Multiply",
        "Parameter",
        "Result",
        "ShapeOf",
    ]
    assert _kinds(folded) == ["Constant", "Interpolate", "Parameter", "Result"]
    assert [port.names for port in (*folded.inputs, *folded.outputs)] == [{"x"}, {"y"}]
    assert _results(folded) == _results(plain)


def test_what_is_not_known_to_fold_rightly_stays_with_the_shapes_behind_it() -> None:
    model = _model(_flattened, 1, 3, 4, 6)
    known_sizes.fold(model)
    assert "ReduceProd" in _kinds(model)
    assert model.outputs[0].shape == [1, 3, 24]


def _with_weights(x: Any) -> Any:
    weights = ops.convert(ops.constant(np.ones((1, 3, 1, 1), np.float16)), "f32")
    table = ops.constant(np.arange(1024, dtype=np.int64))
    taken = ops.gather(table, ops.shape_of(x), _numbers(0))
    return ops.add(ops.multiply(x, weights), ops.convert(ops.reduce_sum(taken, _numbers(0)), "f32"))


def _outside(x: Any) -> Any:
    size = ops.gather(ops.shape_of(x), _numbers(4), _numbers(0))
    return ops.add(x, ops.convert(size, "f32"))


def _in_body(x: Any) -> Any:
    body_input = ops.parameter([1, 3, 4, 6], np.float32)
    half = ops.convert(ops.constant(np.ones(1, np.float16)), "f32")
    body = ov.Model([ops.multiply(body_input, half)], [body_input], "body")
    node = ops.if_op(ops.constant(np.array([True])))
    other = body.clone()
    node.set_then_body(body)
    node.set_else_body(other)
    node.set_input(x.output(0), body_input, other.get_parameters()[0])
    chosen = node.set_output(body.results[0], other.results[0])
    return ops.reshape(chosen, ops.shape_of(x), special_zero=False)


@pytest.mark.parametrize("build", [_with_weights, _outside], ids=["weights", "gather outside"])
def test_weights_and_indices_outside_are_left_alone(build: Callable[[Any], Any]) -> None:
    model = _model(build, 1, 3, 4, 6)
    known_sizes.fold(model)
    assert {"Convert", "Gather"} <= set(_kinds(model))
    assert len(model.inputs) == 1


def test_a_model_with_bodies_is_left_alone() -> None:
    model = _model(_in_body, 1, 3, 4, 6)
    known_sizes.fold(model)
    assert "ShapeOf" in _kinds(model)
    (chosen,) = (node for node in model.get_ops() if node.get_type_name() == "If")
    assert "Convert" in _kinds(chosen.get_function(0))


def test_a_model_of_open_shapes_is_left_alone() -> None:
    model = _model(_resized, -1, 3, 4, 6)
    known_sizes.fold(model)
    assert "ShapeOf" in _kinds(model)
