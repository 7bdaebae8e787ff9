"""Small models, and the device's arithmetic in this process as a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.arithmetic import common_passes
from softnpu.emulator.arithmetic.rewriting import Rounding, rewrite
from softnpu.emulator.arithmetic.settings import Arithmetic

Array = npt.NDArray[Any]
F32 = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def constant(seed: int, *shape: int, scale: float = 0.3) -> ov.Node:
    """Return random values, few of which are f16."""
    return ops.constant(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def whole(seed: int, *shape: int, most: int = 40) -> Array:
    """Return random whole numbers, whose sums and products are exact in f32."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


def half(values: Array) -> Array:
    """Return the nearest f16, saturated."""
    with np.errstate(over="ignore"):
        return np.clip(values.astype(np.float16).astype(np.float32), -65504, 65504)


def convolution(x: ov.Node, seed: int = 1, channels: int = 8) -> ov.Node:
    """Return a 3x3 convolution of 8 channels."""
    return ops.convolution(x, constant(seed, channels, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])


def picture() -> ov.op.Parameter:
    return ops.parameter([1, 8, 12, 12], np.float32, name="x")


def rewritten(model: ov.Model, arithmetic: Arithmetic | None = None) -> tuple[ov.Model, list[Rounding]]:
    """Return a copy for the arithmetic of the device, and its roundings."""
    copy = model.clone()
    return copy, rewrite(copy, arithmetic or Arithmetic())


def computed(
    core: ov.Core, model: ov.Model, inputs: Sequence[Array], arithmetic: Arithmetic | None = None
) -> list[Array]:
    """Return the results in f16, computed in this process."""
    passed = model.clone()
    common_passes.run(passed, arithmetic.kept if arithmetic else frozenset())
    compiled = core.compile_model(rewritten(passed, arithmetic)[0], "CPU", F32)
    return [np.array(value) for value in compiled(list(inputs)).values()]
