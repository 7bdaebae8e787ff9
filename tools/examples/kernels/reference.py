"""What the example kernels compute, with numpy, for `softnpu kernel test --against reference.py:gelu`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_erf = np.vectorize(math.erf, [np.float64])


def gelu(x: Array, approximation_mode: str = "ERF") -> Array:
    """Return x / 2 * (1 + erf(x / sqrt(2))), the only mode."""
    assert approximation_mode == "ERF"
    wide = x.astype(np.float64)
    result: Array = (wide / 2 * (1 + _erf(wide / math.sqrt(2)))).astype(x.dtype)
    return result


def softmax(x: Array, axis: int = -1) -> Array:
    """Return exponentials that add up to 1 along an axis."""
    powers = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    result: Array = powers / powers.sum(axis, keepdims=True)
    return result


def affine(x: Array, a: float, b: float) -> Array:
    """Return a * x + b."""
    result: Array = np.float32(a) * x + np.float32(b)
    return result


def detections(candidates: Array, score: float, overlap: float, most: int) -> tuple[Array, Array, Array]:
    """Return boxes, scores and classes of the best candidates of [1, 4 + classes, candidates]."""
    x = candidates[0]
    classes, scores = x[4:].argmax(0), x[4:].max(0)
    order = [each for each in np.argsort(-scores, kind="stable") if scores[each] >= np.float32(score)]
    half = x[2:4] / 2
    boxes = np.concatenate([x[:2] - half, x[:2] + half]).T
    kept: list[int] = []
    for each in order:
        rivals = [other for other in kept if classes[other] == classes[each]]
        if len(kept) < most and all(_overlap(boxes[other], boxes[each]) <= overlap for other in rivals):
            kept.append(int(each))
    return boxes[kept].reshape(-1, 4), scores[kept], classes[kept].astype(np.int32)


def _overlap(a: Array, b: Array) -> float:
    width, height = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return float(common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common))
