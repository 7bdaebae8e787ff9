"""Rounding to f16 is numpy's: every exponent, sign and tie, with and without the processor's instructions."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.arithmetic import rounding

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("openvino_core")]

_KEPT_BITS = 13  # bits of a significand that f16 lacks


def _every_case() -> np.ndarray:
    """Every sign, exponent and value of the bits that f16 keeps; the others at, below and above each tie."""
    kept = np.arange(1 << (32 - _KEPT_BITS), dtype=np.uint32) << _KEPT_BITS
    half = 1 << (_KEPT_BITS - 1)
    normal = [kept + rest for rest in (0, 1, half - 1, half, half + 1, 2 * half - 1)]
    # a subnormal keeps fewer bits: its ties are those of multiples of 2^-24, and their neighbours
    ties = (np.arange(1 << 11, dtype=np.float32) * np.float32(2**-25)).view(np.uint32)
    near = [ties, ties + 1, np.maximum(ties, 1) - 1]
    return np.concatenate([*normal, *near, *(each | np.uint32(1 << 31) for each in near)]).view(np.float32)


@pytest.mark.parametrize("portably", [False, True])
def test_rounding_equals_numpy(portably: bool) -> None:
    values = _every_case()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    found = rounding.rounded(values, saturate=False, portably=portably)
    nan = np.isnan(values)
    assert np.isnan(found[nan]).all()
    np.testing.assert_array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    saturated = rounding.rounded(values, saturate=True, portably=portably)
    clipped = np.clip(expected[~nan], -65504, 65504)
    np.testing.assert_array_equal(saturated[~nan].view(np.uint32), clipped.view(np.uint32))


def test_both_ways_give_the_same_bits_for_nan() -> None:
    values = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF812345], np.uint32).view(np.float32)
    ways = [rounding.rounded(values, saturate=True, portably=portably) for portably in (False, True)]
    np.testing.assert_array_equal(ways[0].view(np.uint32), ways[1].view(np.uint32))


@pytest.mark.parametrize("kind", [ov.Type.f32, ov.Type.f16])
def test_the_operation_rounds_a_model_of_any_float(openvino_core: ov.Core, kind: ov.Type) -> None:
    left = ops.parameter([-1], kind)
    product = ops.multiply(left, ops.constant(3.001, kind))
    rounded = rounding.operation(product.output(0), True, "rounded", counter=0)
    wide = ops.convert(rounded, "f32")
    model = ov.Model([ops.result(wide)], [left])
    compiled = openvino_core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = np.array([1.5, 30000, 2**-20, -np.inf, 0, np.nan], kind.to_dtype())
    with np.errstate(over="ignore"):
        exact = given.astype(np.float32) * np.float32(ops.constant(3.001, kind).data)
        expected = np.clip(exact.astype(np.float16).astype(np.float32), -65504, 65504)
    rounding.take_count(0)
    np.testing.assert_array_equal(compiled(given)[0], expected)
    found = rounding.take_count(0)
    assert (found.overflows, found.underflows, found.nans) == (2, 0, 1)
    assert found.largest == pytest.approx(90030, rel=1e-3)
