"""Lengths of recurrent sequences: each stops at its own, whatever dimensions are open."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset5
from openvino import opset13 as ops

from softnpu.emulator.openvino.defects import sequence_lengths
from softnpu.plugin import Core

Array = npt.NDArray[Any]
HIDDEN, SIZE = 2, 3
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
OPEN = {
    "static": ((2, 4, SIZE), (2,)),
    "batch": ((-1, 4, SIZE), (-1,)),
    "time": ((2, -1, SIZE), (2,)),
    "all": ((-1, -1, -1), (-1,)),
}
"""Shapes of the data and of the lengths."""
LENGTHS = ((4, 4), (2, 4), (0, 4), (1, 3), (9, 2), (-3, 2), (4, 4))


class Weights(NamedTuple):
    data: Array
    state: Array
    bias: Array


def _weights(kind: str, directions: int = 1) -> Weights:
    random, gates = np.random.default_rng(3), GATES[kind] * HIDDEN
    shapes = (directions, gates, SIZE), (directions, gates, HIDDEN), (directions, gates)
    return Weights(*(random.normal(0, 0.5, shape).astype(np.float32) for shape in shapes))


def _model(kind: str, shape: tuple[int, ...], lengths: Any, direction: str) -> ov.Model:
    """With states of the data's batch; `lengths` is the shape of an input, or the numbers themselves."""
    directions = 2 if direction == "bidirectional" else 1
    weights = [ops.constant(each) for each in _weights(kind, directions)]
    data = ops.parameter(list(shape), np.float32)
    states = [ops.parameter([shape[0], directions, HIDDEN], np.float32) for _ in range(1 + (kind == "lstm"))]
    is_input = isinstance(lengths, tuple)
    given = ops.parameter(list(lengths), np.int32) if is_input else ops.constant(lengths)
    sequence = getattr(opset5, f"{kind}_sequence")(data, *states, given, *weights, HIDDEN, direction)
    parameters = [data, *states, *([given] if is_input else [])]
    return ov.Model([ops.result(each) for each in sequence.outputs()], parameters, kind)


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def _step(kind: str, weights: Weights, row: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    data, state = weights.data[0] @ row + weights.bias[0], weights.state[0] @ hidden
    if kind == "rnn":
        return np.tanh(data + state), cell
    if kind == "lstm":
        forget, taken, new, out = (data + state).reshape(4, HIDDEN)
        cell = _sigmoid(forget) * cell + _sigmoid(taken) * np.tanh(new)
        return _sigmoid(out) * np.tanh(cell), cell
    kept, reset = _sigmoid((data + state)[: 2 * HIDDEN]).reshape(2, HIDDEN)
    new = np.tanh(data[2 * HIDDEN :] + weights.state[0][2 * HIDDEN :] @ (reset * hidden))
    return (1 - kept) * new + kept * hidden, cell


def _expected(kind: str, data: Array, states: list[Array], lengths: Array, direction: str) -> list[Array]:
    weights = _weights(kind)
    rows = np.zeros((len(data), 1, data.shape[1], HIDDEN))
    last = [state.astype(np.float64) for state in states]
    for batch, length in enumerate(np.clip(lengths, 0, data.shape[1])):
        hidden, cell = last[0][batch, 0], last[-1][batch, 0]
        steps = range(length) if direction == "forward" else range(length - 1, -1, -1)
        for step in steps:
            hidden, cell = _step(kind, weights, data[batch, step], hidden, cell)
            rows[batch, 0, step] = hidden
        last[-1][batch, 0], last[0][batch, 0] = cell, hidden
    return [rows, *last]


def _inputs(kind: str, directions: int = 1, batch: int = 2, time: int = 4) -> tuple[Array, list[Array]]:
    random = np.random.default_rng(5)
    data = random.normal(size=(batch, time, SIZE)).astype(np.float32)
    shape = (batch, directions, HIDDEN)
    return data, [random.normal(size=shape).astype(np.float32) for _ in range(1 + (kind == "lstm"))]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("dimensions", OPEN)
def test_a_sequence_ends_at_its_length(shared_core: Core, kind: str, direction: str, dimensions: str) -> None:
    data, states = _inputs(kind)
    model = _model(kind, *OPEN[dimensions], direction)
    request = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()
    for lengths in LENGTHS:
        given = np.array(lengths, np.int32)
        results = request.infer([data, *states, given]).to_tuple()
        for found, expected in zip(results, _expected(kind, data, states, given, direction), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(lengths))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_the_bits_are_those_that_openvino_has_of_known_shapes(
    shared_core: Core, reference: ov.Core, kind: str, direction: str
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    model = _model(kind, *OPEN["all"], direction)
    request = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()
    for numbers, time in (((2, 4), 4), ((5, 1, 3), 5), ((0,), 0), ((4, 3), 4)):
        data, states = _inputs(kind, directions, len(numbers), time)
        given = [data, *states, np.array(numbers, np.int32)]
        results = request.infer(given).to_tuple()
        if not time:  # OpenVINO takes no such sequence
            assert results[0].shape == (1, directions, 0, HIDDEN)
            for found, first in zip(results[1:], states, strict=True):
                np.testing.assert_array_equal(found, first)
            continue
        known = _model(kind, data.shape, (len(numbers),), direction)
        expected = reference.compile_model(known, "CPU", F32)(given).to_tuple()
        for found, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("kind", GATES)
def test_lengths_that_are_constant(shared_core: Core, kind: str) -> None:
    data, states = _inputs(kind)
    lengths = np.array([2, 3], np.int32)
    request = shared_core.compile_model(
        _model(kind, (2, -1, SIZE), lengths, "forward"), "NPU", {"NPU_BATCH_MODE": "COMPILER"}
    ).create_infer_request()
    results = request.infer([data, *states]).to_tuple()
    for found, expected in zip(results, _expected(kind, data, states, lengths, "forward"), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_a_sequence_of_constants(shared_core: Core, kind: str) -> None:
    data, states = _inputs(kind)
    lengths = np.array([2, 3], np.int32)
    model = _model(kind, data.shape, lengths, "forward")
    for parameter, known in zip(model.get_parameters(), (data, *states), strict=True):
        parameter.output(0).replace(ops.constant(known).output(0))
        model.remove_parameter(parameter)
    beside = ops.parameter([1], np.float32)
    model.add_parameters([beside])
    model.add_results([ops.result(beside)])
    results = shared_core.compile_model(model, "NPU")([np.zeros(1, np.float32)]).to_tuple()
    for found, expected in zip(results, _expected(kind, data, states, lengths, "forward"), strict=False):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sequence_over_all_the_time_stays_one_operation() -> None:
    whole = _model("lstm", (2, 4, SIZE), np.array([4, 4], np.int32), "forward")
    assert not sequence_lengths.heed(whole)
    data, states = ops.parameter([-1, -1, SIZE], np.float32), ops.parameter([-1, 1, HIDDEN], np.float32)
    shape = ops.shape_of(data)
    batch, time = (ops.gather(shape, ops.constant([at]), ops.constant(0)) for at in (0, 1))
    weights = [ops.constant(each) for each in _weights("gru")]
    sequence = opset5.gru_sequence(
        data, states, ops.broadcast(ops.squeeze(time, ops.constant([0])), batch), *weights, HIDDEN, "forward"
    )
    model = ov.Model([ops.result(each) for each in sequence.outputs()], [data, states], "m")
    assert not sequence_lengths.heed(model)


@pytest.mark.parametrize("kind", GATES)
def test_a_constant_first_state_gives_the_batch(shared_core: Core, kind: str) -> None:
    """OpenVINO does not compile such a model."""
    weights = [ops.constant(each) for each in _weights(kind)]
    data = ops.parameter([-1, -1, SIZE], np.float32)
    first = np.random.default_rng(5).normal(size=(2, 1, HIDDEN)).astype(np.float32)
    states = [ops.constant(first)] * (1 + (kind == "lstm"))
    shape = ops.shape_of(data)
    time = ops.gather(shape, ops.constant([1]), ops.constant(0))
    lengths = ops.broadcast(time, ops.gather(shape, ops.constant([0]), ops.constant(0)))
    sequence = getattr(opset5, f"{kind}_sequence")(data, *states, lengths, *weights, HIDDEN, "forward")
    model = ov.Model([ops.result(each) for each in sequence.outputs()], [data], kind)
    request = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()
    for steps in (4, 1, 6):
        rows = np.random.default_rng(steps).normal(size=(2, steps, SIZE)).astype(np.float32)
        expected = _expected(kind, rows, [first] * len(states), np.full(2, steps), "forward")
        for found, right in zip(request.infer([rows]).to_tuple(), expected, strict=True):
            np.testing.assert_allclose(found, right, atol=1e-5)
    with pytest.raises(RuntimeError, match="batch"):
        request.infer([np.zeros((3, 4, SIZE), np.float32)])
