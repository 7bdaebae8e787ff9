"""Quantised layers that OpenVINO's CPU runtime fuses and computes wrongly: the numbers are the model's.

With such subgraphs the CPU device of this host may differ or crash, so numpy and the CPU device without them
are the references.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core

Array = npt.NDArray[Any]
UNFUSED = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
SCALE = np.float32(0.01)


def _quantised(value: Any, low: float, high: float) -> Any:
    bounds = [ops.constant(np.float32(each)) for each in (low, high, low, high)]
    return ops.fake_quantize(value, *bounds, 256)


def _weights(outputs: int, inputs: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-127, 128, (outputs, inputs)).astype(np.int8)


def _linear(value: Any, weights: Array) -> Any:
    return ops.matmul(value, ops.multiply(ops.convert(ops.constant(weights), "f32"), SCALE), False, True)


def _chain(sizes: Sequence[int], low: float, high: float) -> ov.Model:
    source = ops.parameter([4, sizes[0]], np.float32)
    value: Any = source
    for seed, (inputs, outputs) in enumerate(pairwise(sizes)):
        value = _linear(_quantised(value, low, high), _weights(outputs, inputs, seed))
    return ov.Model([value], [source], "chain")


def _chain_in_numpy(sizes: Sequence[int], low: float, high: float, value: Array) -> Array:
    step = (high - low) / 255
    for seed, (inputs, outputs) in enumerate(pairwise(sizes)):
        value = np.round((np.clip(value, low, high) - low) / step) * step + low
        value = value @ _weights(outputs, inputs, seed).T * SCALE
    return value


def _attention(tokens: int, size: int) -> ov.Model:
    source = ops.parameter([1, tokens, size], np.float32)
    given = _quantised(source, -1.28, 1.27)
    parts = [_quantised(_linear(given, _weights(size, size, seed)), -12.8, 12.7) for seed in range(3)]
    mixed = _quantised(ops.scaled_dot_product_attention(*parts), -12.8, 12.7)
    return ov.Model([_linear(mixed, _weights(16, size, 9))], [source], "attention")


def _result(core: Any, device: str, model: ov.Model, config: dict[str, str], value: Array) -> Array:
    return np.array(core.compile_model(model, device, config)([value])[0])


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (-1.27, 1.28), (-1.28, 1.27), (0.0, 2.55)])
@pytest.mark.parametrize("sizes", [(64, 256, 64), (16, 16, 16, 16)])
def test_a_chain_of_quantised_layers(
    shared_core: Core, sizes: Sequence[int], low: float, high: float
) -> None:
    value = np.random.default_rng(3).normal(0, 1, (4, sizes[0])).astype(np.float32)
    found = _result(shared_core, "NPU", _chain(sizes, low, high), {"NPU_BATCH_MODE": "COMPILER"}, value)
    # a value in the middle of two steps may be rounded to either
    expected = _chain_in_numpy(sizes, low, high, value.astype(np.float64))
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(("tokens", "size"), [(8, 128), (8, 32)])
def test_quantised_attention(shared_core: Core, reference: ov.Core, tokens: int, size: int) -> None:
    model = _attention(tokens, size)
    value = np.random.default_rng(3).normal(0, 1, (1, tokens, size)).astype(np.float32)
    expected = _result(reference, "CPU", model, UNFUSED, value)
    np.testing.assert_array_equal(_result(shared_core, "NPU", model, {}, value), expected)
