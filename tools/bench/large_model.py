"""A model of a given size: products with distinct square matrices of f32."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

LAYERS: Final = 32
_BYTES: Final = 4
_LEAST: Final = 8


def width_of(size: int) -> int:
    """Return the side of the matrices for about `size` bytes of weights."""
    return max(_LEAST, math.isqrt(size // (LAYERS * _BYTES)))


def weights_of(size: int) -> int:
    """Return that model's bytes of weights."""
    return int(LAYERS * width_of(size) ** 2 * _BYTES)


def build(size: int, seed: int = 0) -> ov.Model:
    """Build `x` f32 [1, width], multiplied by one matrix after another; about `size` bytes of weights."""
    width = width_of(size)
    matrix = np.random.default_rng(seed).standard_normal((width, width), np.float32) / math.sqrt(width)
    x = ops.parameter([1, width], ov.Type.f32, name="x")
    value: Any = x
    for layer in range(LAYERS):
        # the model copies it: only one matrix exists twice at a time
        value = ops.tanh(ops.matmul(value, ops.constant(np.roll(matrix, layer, 0)), False, False))
    value.output(0).set_names({"y"})
    x.output(0).set_names({"x"})
    return ov.Model([value], [x], "large")
