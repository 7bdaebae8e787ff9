"""THROUGHPUT and compressed weights: OpenVINO mixes up constants when it makes several streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core
from tests.support.batches import F32, model_of, on_cpu, parameter

_SIZE = 6
_TRIES = 6
"""About every second result is wrong with two streams."""


def _product(x: Any, random: np.random.Generator) -> Any:
    """Compressed weights times `x`: the factor is applied when the graph is created."""
    weights = ops.convert(ops.constant(random.integers(-9, 9, (_SIZE, _SIZE)).astype(np.int8)), ov.Type.f32)
    factors = ops.constant(random.uniform(0.1, 3, (_SIZE, 1)).astype(np.float32))
    return ops.matmul(ops.multiply(weights, factors), x, False, False)


def _plain(random: np.random.Generator) -> ov.Model:
    x = parameter("x", (_SIZE, _SIZE))
    return model_of(_product(x, random), x)


def _in_a_body(random: np.random.Generator) -> ov.Model:
    x, row = parameter("x", (3, _SIZE)), parameter("row", (1, _SIZE))
    column = ops.transpose(row, ops.constant([1, 0]))
    result = ops.result(ops.transpose(_product(column, random), ops.constant([1, 0])))
    loop = ops.tensor_iterator()
    loop.set_body(ov.Model([result], [row]))
    loop.set_sliced_input(row, x.output(0), 0, 1, 1, -1, 0)
    return model_of(loop.get_concatenated_slices(result.output(0), 0, 1, 1, -1, 0), x)


@pytest.mark.parametrize("make", [_plain, _in_a_body])
def test_constants_computed_in_steps_are_right_for_throughput(
    shared_core: Core, make: Callable[[np.random.Generator], ov.Model]
) -> None:
    for seed in range(_TRIES):
        random = np.random.default_rng(seed)
        model = make(random)
        data = random.random(tuple(model.inputs[0].shape), np.float32)
        compiled = shared_core.compile_model(model, "NPU", {**F32, "PERFORMANCE_HINT": "THROUGHPUT"})
        np.testing.assert_array_equal(compiled(data)[0], on_cpu(model, [data])[0])


def test_a_model_that_openvino_loads_for_one_stream_only(shared_core: Core) -> None:
    """Consecutive recurrent cells: with two streams, OpenVINO's CPU device refuses a layout."""
    random = np.random.default_rng(3)

    def constant(*shape: int) -> Any:
        return ops.constant(random.uniform(-1, 1, shape).astype(np.float32))

    x = parameter("x", (5, 1))
    first = ops.rnn_cell(
        x, constant(5, 1), constant(1, 1), constant(1, 1), constant(1), 1, ["tanh"], [], [], 1.5
    )
    weights = constant(5, 4), constant(5, 4), constant(16, 1), constant(16, 4), constant(16)
    second = ops.lstm_cell(first, *weights, 4, ["sigmoid", "sigmoid", "tanh"])
    weights = constant(5, 3), constant(5, 3), constant(12, 4), constant(12, 3), constant(12)
    model = model_of(ops.lstm_cell(second.output(0), *weights, 3).output(0), x)
    config = {**F32, "PERFORMANCE_HINT": "THROUGHPUT", "NPU_BATCH_MODE": "COMPILER"}
    data = random.uniform(-1, 1, (5, 1)).astype(np.float32)
    found = shared_core.compile_model(model, "NPU", config)(data)[0]
    np.testing.assert_array_equal(found, on_cpu(model, [data])[0])
