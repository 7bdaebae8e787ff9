"""Dynamic inner dimensions must equal the weights': OpenVINO would read past a shorter input."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core, InferError

INNER = 7
_RANDOM = np.random.default_rng(4)


def _weights(*shape: int) -> Any:
    return ops.constant(_RANDOM.uniform(-1, 1, shape).astype(np.float32))


def _input(*shape: int) -> Any:
    return ops.parameter(ov.PartialShape(list(shape)), np.float32)


def _model(result: Any, parameter: Any) -> ov.Model:
    return ov.Model([ops.result(result)], [parameter], "product")


def _product() -> ov.Model:
    x = _input(2, -1)
    return _model(ops.matmul(x, _weights(12, INNER), False, True), x)


def _first_transposed() -> ov.Model:
    x = _input(-1, 2)
    return _model(ops.matmul(x, _weights(INNER, 12), True, False), x)


def _deep() -> ov.Model:
    x = _input(1, 2, -1)
    return _model(ops.relu(ops.matmul(x, _weights(12, INNER), False, True)), x)


def _cell() -> ov.Model:
    x = _input(2, -1)
    state = ops.constant(np.zeros((2, 4), np.float32))
    cell = ops.gru_cell(
        x, state, _weights(12, INNER), _weights(12, 4), _weights(12), 4, ["relu", "tanh"], [], [], 0.7
    )
    return _model(cell.output(0), x)


def _in_a_body() -> ov.Model:
    x, inside = _input(2, -1), _input(2, -1)
    body = _model(ops.matmul(inside, _weights(12, INNER), False, True), inside)
    otherwise = _input(2, -1)
    other = _model(
        ops.multiply(ops.matmul(otherwise, _weights(12, INNER), False, True), np.float32(2)), otherwise
    )
    switch = ops.if_op(ops.greater(ops.reduce_sum(x, np.array([0, 1]), False), np.float32(0)).output(0))
    switch.set_then_body(body)
    switch.set_else_body(other)
    switch.set_input(x.output(0), inside, otherwise)
    return _model(switch.set_output(body.get_results()[0], other.get_results()[0]), x)


@pytest.mark.parametrize("make", [_product, _first_transposed, _deep, _cell, _in_a_body])
def test_an_input_of_another_inner_dimension_is_refused(shared_core: Core, make: Any) -> None:
    model = make()
    expected = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = shared_core.compile_model(model).create_infer_request()
    for size in (INNER, 1, 2, INNER - 1, INNER + 1, INNER):
        shape = [size if dim.is_dynamic else dim.get_length() for dim in model.input(0).partial_shape]
        data = _RANDOM.uniform(-1, 1, shape).astype(np.float32)
        if size == INNER:
            np.testing.assert_array_equal(request.infer([data])[0], expected([data])[0])
        else:
            with pytest.raises(InferError, match="/inner 0"):
                request.infer([data])


def _states(kind: str, rows: int) -> ov.Model:
    x, state = _input(rows, -1), _input(rows, ov.Dimension(0, 9))
    gates = {"gru": 3, "lstm": 4, "rnn": 1}[kind]
    weights = _weights(3 * gates, INNER), _weights(3 * gates, 3), _weights(3 * gates)
    if kind == "gru":
        cell = ops.gru_cell(x, state, *weights, 3, ["relu", "tanh"], [], [], 1.5)
    elif kind == "rnn":
        cell = ops.rnn_cell(x, state, *weights, 3, ["relu"], [], [])
    else:
        cell = ops.lstm_cell(x, state, _weights(rows, 3), *weights, 3)
    return ov.Model([ops.result(cell.output(0))], [x, state], kind)


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn"])
def test_a_dynamic_state_of_a_cell_gives_the_bits_of_the_cpu_device(shared_core: Core, kind: str) -> None:
    rows = 200
    model = _states(kind, rows)
    expected = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = shared_core.compile_model(model).create_infer_request()
    for size in (3, 2, 4, 3):
        data = [_RANDOM.normal(0, 2, (rows, length)).astype(np.float32) for length in (INNER, size)]
        if size == 3:
            np.testing.assert_array_equal(request.infer(data)[0], expected(data)[0])
        else:
            with pytest.raises(InferError, match="/inner 1"):
                request.infer(data)
