"""Faults of numbers: what is computed of constants, in 8 bits, and in bf16."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.openvino.faults.fault import Array, Compile, Fault, Step, differences, model, random, steps
from tests.support.quantised import chain, in_numpy

_SIZE, _TRIES = 6, 20
_CHAIN = (16, 16, 16, 16)


def _added() -> ov.Model:
    """A constant that is convolved with another, and what is added to it."""
    x = ops.parameter([1], np.float32)
    convolved = ops.convolution(
        ops.constant(random(4, 1, 5)), ops.constant(np.ones((1, 1, 3), np.float32)), [1], [0], [0], [1]
    )
    return model(ops.add(convolved, x), x)


def _convolved(added: float) -> Array:
    data = random(4, 1, 5).astype(np.float64)
    return data[:, :, :3] + data[:, :, 1:4] + data[:, :, 2:] + added


def _in_streams(compiled_by: Compile) -> str:
    """Compressed weights, whose factor is applied when the graph is made, and several streams."""
    for seed in range(_TRIES):
        generator = np.random.default_rng(seed)
        data, weights = ops.parameter([_SIZE, _SIZE], np.float32), generator.integers(-9, 9, (_SIZE, _SIZE))
        factors = generator.uniform(0.1, 3, (_SIZE, 1)).astype(np.float32)
        known = ops.convert(ops.constant(weights.astype(np.int8)), ov.Type.f32)
        product = ops.matmul(ops.multiply(known, ops.constant(factors)), data, False, False)
        compiled = compiled_by(model(product, data), {"PERFORMANCE_HINT": "THROUGHPUT"})
        given = generator.random((_SIZE, _SIZE), np.float32)
        for _ in range(2):
            found = compiled.create_infer_request().infer([given])[0]
            wrong = differences([found], [(weights * factors) @ given], 1e-4)
            if wrong:
                return wrong
    return ""


def _chained(compiled_by: Compile) -> str:
    """A chain of quantised layers. A value halfway between two steps may be rounded to either."""
    for low, high in ((-1.0, 2.0), (-1.27, 1.28), (0.0, 2.55)):
        given = np.random.default_rng(3).normal(0, 1, (4, _CHAIN[0])).astype(np.float32)
        found = compiled_by(chain(_CHAIN, low, high), {})([given])[0]
        right = in_numpy(_CHAIN, low, high, given.astype(np.float64))
        error = np.abs(found - right).max() / np.abs(right).max()
        if not error < 0.02:
            return f"wrong by {error:.0%} of the largest value"
    return ""


FAULTS: dict[str, Fault] = {
    "constant-parts": steps(
        _added,
        *(Step([np.array([each], np.float32)], [_convolved(each)]) for each in (0.75, 0.75, -2.5)),
        rtol=1e-5,
    ),
    "stream-constants": _in_streams,
    "quantised-subgraphs": _chained,
}
