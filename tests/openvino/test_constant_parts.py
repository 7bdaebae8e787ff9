"""Operations on constants that OpenVINO does not fold: every inference gives the numbers of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core

_DTYPES = {"i8": np.int8, "u8": np.uint8, "i16": np.int16}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def _data(*shape: int) -> Any:
    return ops.constant(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def _bound(number: float) -> Any:
    return ops.constant(np.array([number], np.float32))


def _convolution() -> Any:
    return ops.convolution(_data(4, 1, 5), _data(5, 1, 3), [1], [0], [0], [1])


HEADS: dict[str, Callable[[], Any]] = {
    "convolution": _convolution,
    "then relu": lambda: ops.relu(_convolution()),
    "pooling": lambda: ops.avg_pool(_data(1, 4, 6), [1], [0], [0], [2], False),
    "cell": lambda: ops.gru_cell(_data(2, 4), _data(2, 3), _data(9, 4), _data(9, 3), _data(9), 3),
    "levels": lambda: ops.fake_quantize(_data(4, 6), *(_bound(size) for size in (-1, 2, -1, 2)), 5),
    "folded": lambda: ops.matmul(ops.exp(_data(4, 5)), _data(5, 6), False, False),
}
TAILS: dict[str, Callable[[Any, Any], Any]] = {
    "add": ops.add,
    "multiply": ops.multiply,
    "prelu": ops.prelu,
    "fused": lambda value, x: ops.relu(ops.add(value, x)),
}


def _model(head: str, tail: str) -> ov.Model:
    x = ops.parameter([1], ov.Type.f32)
    return ov.Model([ops.result(TAILS[tail](HEADS[head](), x))], [x], f"{head} {tail}")


@pytest.mark.parametrize("head", HEADS)
def test_no_inference_changes_the_next_one(shared_core: Core, reference: ov.Core, head: str) -> None:
    for tail in TAILS:
        compiled = shared_core.compile_model(_model(head, tail), "NPU", F32)
        for x in (np.array([0.75], np.float32), np.array([-2.5], np.float32)):
            # only OpenVINO's first result is right
            expected = reference.compile_model(_model(head, tail), "CPU", F32)([x])[0]
            for _ in range(3):
                np.testing.assert_array_equal(compiled.create_infer_request().infer([x])[0], expected, tail)


@pytest.mark.parametrize("element_type", ["i8", "u8", "i16"])
@pytest.mark.parametrize("kind", [ops.matmul, ops.maximum, ops.power, ops.multiply])
def test_folding_depends_on_the_type(shared_core: Core, kind: Callable[..., Any], element_type: str) -> None:
    numbers = np.array([[1, 2], [3, 1]], _DTYPES[element_type])
    flags = (False, False) if kind is ops.matmul else ()
    x = ops.parameter([2, 2], getattr(ov.Type, element_type))
    value = kind(ops.constant(numbers), ops.constant(numbers), *flags)
    model = ov.Model([ops.result(ops.add(value, x))], [x], "typed")
    compiled = shared_core.compile_model(model, "NPU", F32)
    zero = np.zeros_like(numbers)
    first = compiled.create_infer_request().infer([zero])[0].copy()
    for _ in range(3):
        one = compiled.create_infer_request().infer([zero + 1])[0]
        np.testing.assert_array_equal(one, first + 1)


def test_a_constant_is_normalised_once(shared_core: Core) -> None:
    data = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    x = ops.parameter([4, 5], ov.Type.f32)
    normal = ops.normalize_l2(ops.constant(data), ops.constant(np.array([1])), 1e-5, "add")
    model = ov.Model([ops.result(ops.multiply(normal, x))], [x], "normal")
    expected = data / np.sqrt(np.square(data, dtype=np.float64).sum(1, keepdims=True) + 1e-5)
    compiled = shared_core.compile_model(model, "NPU", F32)
    for _ in range(3):  # OpenVINO's own numbers are wrong from the first inference
        scaled = compiled({0: np.full((4, 5), 2, np.float32)})[0]
        np.testing.assert_allclose(scaled, expected * 2, rtol=1e-6)
