"""Models known to overflow in f16, and the layers that keep them right in f32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset2
from openvino import opset13 as ops

from softnpu.emulator.arithmetic import common_passes, rounding
from softnpu.emulator.arithmetic.rewriting import rewrite
from softnpu.emulator.arithmetic.settings import Arithmetic, kept_layers, unknown_layer
from tests.arithmetic.models import F32, computed, constant, half, rewritten, whole

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("openvino_core")]


def _feed_forward() -> tuple[ov.Model, np.ndarray]:
    """As in T5: the product of the second matrix exceeds f16."""
    x = ops.parameter([2, 64], np.float32)
    product = ops.matmul(x, ops.constant(np.full((64, 8), 50, np.float32)), False, False)
    product.set_friendly_name("wo")
    given = np.full((2, 64), 32, np.float32)
    return ov.Model([ops.result(product), ops.result(ops.sqrt(product))], [x]), given


@pytest.mark.parametrize(
    ("arithmetic", "product", "root"),
    [
        (Arithmetic(), 65504, 255.875),
        (Arithmetic(saturates=False), np.inf, np.inf),
        (Arithmetic(kept=frozenset({"MatMul"})), 102400, 255.875),
        (Arithmetic(kept=frozenset({"Sqrt"})), 65504, np.sqrt(np.float32(65504))),
        (Arithmetic(kept=frozenset({"MatMul", "Sqrt"})), 102400, 320),
    ],
)
def test_a_product_beyond_f16_saturates_or_is_infinite_or_is_kept(
    openvino_core: ov.Core, arithmetic: Arithmetic, product: float, root: float
) -> None:
    model, given = _feed_forward()
    found = computed(openvino_core, model, [given], arithmetic)
    np.testing.assert_array_equal(found[0], np.full((2, 8), product, np.float32))
    np.testing.assert_array_equal(found[1], np.full((2, 8), root, np.float32))


def test_the_counts_name_the_layer_that_overflows(openvino_core: ov.Core) -> None:
    model, given = _feed_forward()
    roundings = rewrite(model, Arithmetic(), counted=True, first=100)
    for each in roundings:
        rounding.take_count(each.counter)
    openvino_core.compile_model(model, "CPU", F32)(given)
    counts = {each.layer: rounding.take_count(each.counter) for each in roundings}
    overflowed = [layer for layer, count in counts.items() if count.overflows]
    assert overflowed == ["wo"]
    assert counts["wo"] == rounding.Count(50 * 32 * 64, 16, 0, 0)


@pytest.mark.parametrize(("width", "wrong"), [(255, False), (512, True)])
@pytest.mark.parametrize("opset", [1, 6])
def test_mvn_over_more_than_65504_elements_sums_beyond_f16(
    openvino_core: ov.Core, width: int, wrong: bool, opset: int
) -> None:
    x = ops.parameter([1, 1, 256, width], np.float32)
    if opset == 1:
        normal = opset2.mvn(x, across_channels=False, normalize_variance=True, eps=1e-6)
    else:
        normal = ops.mvn(x, ops.constant([2, 3]), True, 1e-6, "inside_sqrt")
    model = ov.Model([ops.result(normal)], [x])
    given = np.random.default_rng(1).normal(0, 4, (1, 1, 256, width)).astype(np.float32)
    exact = (given - given.mean()) / given.std()
    (found,) = computed(openvino_core, model, [given])
    assert bool(np.abs(found - exact).max() > 1) is wrong
    (found,) = computed(openvino_core, model, [given], Arithmetic(kept=frozenset({"MVN"})))
    np.testing.assert_allclose(found, exact, atol=1e-2)


def _rms(x: ov.Node) -> list[ov.Node]:
    squares = ops.power(x, ops.constant(np.float32(2)))
    mean = ops.reduce_mean(squares, ops.constant([-1]), True)
    stable = ops.add(mean, ops.constant(np.float32(1e-6)))
    root = ops.sqrt(stable)
    inverse = ops.divide(ops.constant(np.float32(1)), root)
    return [squares, mean, stable, root, inverse, ops.multiply(x, inverse)]


def _norm(*_: object) -> ov.Model:
    x, y = ops.parameter([1, 4, 32], np.float32), ops.parameter([1, 4, 32], np.float32)
    sum_ = ops.add(x, y)
    return ov.Model([ops.result(_rms(sum_)[-1])], [x, y])


KEPT: dict[str, list[str]] = {
    "Add_RMSNorm": ["Add"],
    "Add_BeforeRMSNorm": ["Add"],
    "Sqrt,Power,ReduceMean,Add_RMSNorm": ["Add", "Power", "ReduceMean", "Sqrt"],
    "RMS": ["Add", "Divide", "Multiply", "Power", "ReduceMean", "Sqrt"],
    "Add": ["Add", "Add"],
    "ReduceSquare": [],
}


@pytest.mark.parametrize("names", KEPT)
def test_the_list_has_the_real_compilers_meaning(names: str) -> None:
    from softnpu.emulator.arithmetic import groups

    model = _norm()
    arithmetic = Arithmetic.of(
        {"NPU_COMPILATION_MODE_PARAMS": f"compute-layers-with-higher-precision={names}"}
    )
    found = groups.kept_in_f32(model, arithmetic.kept)
    kinds = sorted(op.get_type_name() for op in model.get_ops() if op.get_name() in found)
    assert kinds == KEPT[names]


def test_the_square_of_a_sum_is_kept_right(openvino_core: ov.Core) -> None:
    model = _norm()
    given = [whole(1, 1, 4, 32, most=600), whole(2, 1, 4, 32, most=600)]
    exact = sum(given) / np.sqrt(np.square(sum(given)).mean(-1, keepdims=True))
    (wrong,) = computed(openvino_core, model, given)
    assert np.abs(wrong - exact).max() > 0.5
    kept = Arithmetic(kept=frozenset({"Sqrt", "Power", "ReduceMean", "Add_RMSNorm"}))
    (right,) = computed(openvino_core, model, given, kept)
    np.testing.assert_allclose(right, exact, atol=5e-3)


@pytest.mark.parametrize(
    ("params", "layers", "unknown"),
    [
        ("", (), None),
        ("optimization-level=1", (), None),
        ("a=b compute-layers-with-higher-precision=Sqrt,Power,Sqrt", ("Power", "Sqrt"), None),
        ("compute-layers-with-higher-precision=SoftMax,internal_MvnNormalize", ("SoftMax",), None),
        ("compute-layers-with-higher-precision=Squrt", ("Squrt",), "Squrt"),
    ],
)
def test_the_list_is_read_from_the_parameters(
    params: str, layers: tuple[str, ...], unknown: str | None
) -> None:
    assert kept_layers(params) == layers
    found = unknown_layer(params)
    assert (found and found[0]) == unknown
    assert found is None or "Sqrt" in found[1]


def _masks() -> dict[str, Callable[[], tuple[list[ov.Node], bool]]]:
    return {
        "none": lambda: ([], False),
        "causal": lambda: ([], True),
        "added": lambda: ([constant(4, 6, 6)], False),
        "boolean, with a scale": lambda: (
            [ops.constant(np.tri(6, dtype=bool)), ops.constant(np.float32(0.5))],
            False,
        ),
    }


@pytest.mark.parametrize("name", _masks())
def test_attention_is_rounded_step_by_step(openvino_core: ov.Core, name: str) -> None:
    more, causal = _masks()[name]()
    inputs = [ops.parameter([1, 2, 6, 8], np.float32) for _ in range(3)]
    attention = ops.scaled_dot_product_attention(*inputs, *more, causal=causal)
    model = ov.Model([ops.result(attention)], inputs)
    given = [np.random.default_rng(seed).normal(size=(1, 2, 6, 8)).astype(np.float32) for seed in range(3)]
    exact = openvino_core.compile_model(model, "CPU", F32)(given)[0]
    (found,) = computed(openvino_core, model, given)
    np.testing.assert_allclose(found, exact, atol=5e-3)
    np.testing.assert_array_equal(found, half(found))
    kinds = [each.kind for each in rewritten(model)[1]]
    assert kinds.count("MatMul") == 2
    assert "Softmax" in kinds


def _divided(tiny: float, screened: bool) -> ov.Model:
    x = ops.parameter([4], np.float32, name="x")
    root = ops.sqrt(ops.add(ops.multiply(x, x), ops.constant(np.float32(tiny))))
    result = ops.divide(x, root)
    if screened:
        result = ops.select(ops.equal(x, ops.constant(np.float32(0))), ops.constant(np.float32(0)), result)
    return ov.Model([ops.result(result)], [x])


@pytest.mark.parametrize("screened", [False, True])
def test_a_divisor_that_f16_rounds_to_zero_is_clamped(openvino_core: ov.Core, screened: bool) -> None:
    given = [np.array([0, 1e-5, 3, 4], np.float32)]  # the square of 1e-5 is 0 in f16
    (found,) = computed(openvino_core, _divided(1e-12, screened), given)
    smallest = 0 if screened else half(np.float32(1e-5) / np.sqrt(np.float32(2**-24)))
    assert np.isfinite(found).all()
    assert found[0] == 0
    assert found[1] == pytest.approx(float(smallest) if smallest else 65504, rel=1e-2)
    np.testing.assert_allclose(found[2:], 1, rtol=1e-3)


def test_large_weights_in_f16_are_kept_by_the_common_passes() -> None:
    x = ops.parameter([1, 64], np.float32, name="x")
    weights = ops.constant(np.ones((64, 64), np.float16))
    factor = ops.convert(ops.constant(np.full((1, 64), 3, np.float16)), "f32")
    product = ops.matmul(ops.multiply(x, factor), ops.convert(weights, "f32"), False, False)
    model = ov.Model([ops.result(product)], [x])
    common_passes.run(model)
    constants = {
        tuple(each.shape): each.get_element_type()
        for each in model.get_ops()
        if each.get_type_name() == "Constant"
    }
    assert constants == {(64, 64): ov.Type.f16, (1, 64): ov.Type.f32}
    assert [port.any_name for port in model.inputs] == ["x"]
