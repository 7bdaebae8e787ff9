"""Models with quantised layers that OpenVINO's CPU runtime fuses and miscomputes, or crashes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

Array = npt.NDArray[Any]
SCALE = np.float32(0.01)


def _quantised(value: Any, low: float, high: float) -> Any:
    bounds = [ops.constant(np.float32(each)) for each in (low, high, low, high)]
    return ops.fake_quantize(value, *bounds, 256)


def _weights(outputs: int, inputs: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-127, 128, (outputs, inputs)).astype(np.int8)


def _linear(value: Any, weights: Array) -> Any:
    return ops.matmul(value, ops.multiply(ops.convert(ops.constant(weights), "f32"), SCALE), False, True)


def chain(sizes: Sequence[int], low: float, high: float) -> ov.Model:
    source = ops.parameter([4, sizes[0]], np.float32)
    value: Any = source
    for seed, (inputs, outputs) in enumerate(pairwise(sizes)):
        value = _linear(_quantised(value, low, high), _weights(outputs, inputs, seed))
    return ov.Model([value], [source], "chain")


def in_numpy(sizes: Sequence[int], low: float, high: float, value: Array) -> Array:
    """Compute `chain` in numpy."""
    step = (high - low) / 255
    for seed, (inputs, outputs) in enumerate(pairwise(sizes)):
        value = np.round((np.clip(value, low, high) - low) / step) * step + low
        value = value @ _weights(outputs, inputs, seed).T * SCALE
    return value


def attention(tokens: int, size: int) -> ov.Model:
    source = ops.parameter([1, tokens, size], np.float32)
    given = _quantised(source, -1.28, 1.27)
    parts = [_quantised(_linear(given, _weights(size, size, seed)), -12.8, 12.7) for seed in range(3)]
    mixed = _quantised(ops.scaled_dot_product_attention(*parts), -12.8, 12.7)
    return ov.Model([_linear(mixed, _weights(16, size, 9))], [source], "attention")
