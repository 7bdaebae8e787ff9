"""The device rounds once after each group, and OpenVINO still fuses the operations inside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.arithmetic.settings import Arithmetic
from tests.arithmetic.models import (
    F32,
    computed,
    constant,
    convolution,
    half,
    picture,
    rewritten,
    whole,
)

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("openvino_core")]


def _bias(x: ov.Node, *shape: int) -> ov.Node:
    return ops.add(x, constant(2, *(shape or (1, 8, 1, 1))))


def _silu(x: ov.Node) -> ov.Node:
    return ops.multiply(x, ops.sigmoid(x))


def _quantised(x: ov.Node, low: float = -1) -> ov.Node:
    return ops.fake_quantize(x, *(ops.constant(np.float32(end)) for end in (low, 1, low, 1)), 256)


def _quantised_convolution(x: ov.Node) -> ov.Node:
    return ops.relu(ops.convolution(_quantised(x), _quantised(constant(1, 8, 8, 3, 3)), *[[1, 1]] * 4))


GROUPS: dict[str, tuple[Callable[[ov.Node], ov.Node], list[str]]] = {
    "bias and ReLU": (lambda x: ops.relu(_bias(convolution(x))), ["Parameter", "Relu"]),
    "bias and Swish": (lambda x: ops.swish(_bias(convolution(x))), ["Parameter", "Swish"]),
    "Swish of two operations": (lambda x: _silu(_bias(convolution(x))), ["Parameter", "Multiply"]),
    "factor and bias of a batch norm": (
        lambda x: ops.relu(_bias(ops.multiply(convolution(x), constant(3, 1, 8, 1, 1)))),
        ["Parameter", "Relu"],
    ),
    "a bias over the picture is another operation": (
        lambda x: _bias(convolution(x), 1, 8, 12, 12),
        ["Parameter", "Convolution", "Add"],
    ),
    "two readers": (
        lambda x: ops.concat([(sum_ := _bias(convolution(x))), ops.exp(sum_)], 1),
        ["Parameter", "Add", "Exp"],
    ),
    "residual": (lambda x: ops.add(_bias(convolution(x)), x), ["Parameter", "Add", "Add"]),
    "residual and ReLU": (
        lambda x: ops.relu(ops.add(convolution(x), x)),
        ["Parameter", "Convolution", "Relu"],
    ),
    "MatMul, bias, GELU": (
        lambda x: ops.gelu(_bias(ops.matmul(x, constant(1, 12, 12), False, False), 12), "erf"),
        ["Parameter", "Gelu"],
    ),
    "scaled logits": (
        lambda x: ops.multiply(ops.matmul(x, x, False, True), ops.constant(np.float32(0.1))),
        ["Parameter", "MatMul", "Multiply"],
    ),
    "what only moves values": (
        lambda x: ops.reduce_max(ops.relu(ops.concat([x, ops.negative(x)], 1)), ops.constant([1])),
        ["Parameter"],
    ),
    "a table of embeddings": (
        lambda x: ops.gather(constant(1, 9, 4), ops.convert(ops.abs(x), "i32"), ops.constant(0)),
        ["Parameter", "Gather"],
    ),
    "shapes": (lambda x: ops.sqrt(ops.convert(ops.shape_of(x), "f32")), []),
    "integers between quantisations": (
        lambda x: _quantised(_quantised_convolution(x), 0),
        ["Parameter", "FakeQuantize"],
    ),
    "quantised, then a software kernel": (
        lambda x: ops.softmax(_quantised(_quantised_convolution(x), 0), 1),
        ["Parameter", "FakeQuantize", "Softmax"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_each_group_is_rounded_once_after_its_last_operation(name: str) -> None:
    build, expected = GROUPS[name]
    x = picture()
    _, roundings = rewritten(ov.Model([ops.result(build(x))], [x]))
    assert [rounding.kind for rounding in roundings] == expected


@pytest.mark.parametrize("activation", [ops.relu, ops.swish, _silu])
def test_a_convolution_still_runs_with_its_bias_and_activation(
    openvino_core: ov.Core, activation: Callable[[ov.Node], ov.Node]
) -> None:
    x = picture()
    first = activation(_bias(convolution(x)))
    model = ov.Model([ops.result(activation(_bias(convolution(first, seed=5))))], [x])
    compiled = openvino_core.compile_model(rewritten(model)[0], "CPU", F32)
    layers = [node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()]
    assert layers.count("Convolution") == 2
    assert not {"Subgraph", "Eltwise"} & set(layers), "everything else of the groups is inside of them"


def test_products_are_summed_in_f32_and_rounded_once(openvino_core: ov.Core) -> None:
    given, weights, bias = whole(1, 4, 96), whole(2, 96, 16), whole(3, 16, most=2000)
    x = ops.parameter([4, 96], np.float32)
    product = ops.relu(ops.add(ops.matmul(x, ops.constant(weights), False, False), ops.constant(bias)))
    (found,) = computed(openvino_core, ov.Model([ops.result(product)], [x]), [given])
    exact = given @ weights
    np.testing.assert_array_equal(found, half(np.maximum(exact + bias, 0)))
    assert not np.array_equal(found, half(np.maximum(half(exact) + bias, 0))), "rounded twice it differs"


def test_inputs_and_constants_are_rounded_but_settings_are_not(openvino_core: ov.Core) -> None:
    given = np.array([0.1, 0.3, 1e-8, 1e6], np.float32)
    weight = np.float32(0.7)
    x = ops.parameter([4], np.float32)
    ends = [ops.constant(np.float32(end)) for end in (0, 0.333, 0, 0.333)]
    results = [ops.multiply(x, ops.constant(weight)), ops.exp(ops.fake_quantize(x, *ends, 2))]
    model = ov.Model([ops.result(each) for each in results], [x])
    product, chosen = computed(openvino_core, model, [given], Arithmetic(kept=frozenset({"Exp"})))
    np.testing.assert_array_equal(product, half(half(given) * half(np.array(weight))))
    np.testing.assert_allclose(np.unique(chosen), np.exp(np.array([0, 0.333])), rtol=1e-6)


def _if_model() -> ov.Model:
    inner = ops.parameter([4], np.float32)
    then = ov.Model([ops.result(ops.multiply(inner, ops.constant(np.float32(3.001))))], [inner])
    other = ops.parameter([4], np.float32)
    otherwise = ov.Model([ops.result(ops.exp(other))], [other])
    x, chosen = ops.parameter([4], np.float32), ops.parameter([], bool)
    branch = ops.if_op(chosen)
    branch.set_then_body(then)
    branch.set_else_body(otherwise)
    branch.set_input(x.output(0), inner, other)
    result = branch.set_output(then.results[0], otherwise.results[0])
    return ov.Model([ops.result(ops.negative(result))], [x, chosen])


def test_bodies_round_as_well(openvino_core: ov.Core) -> None:
    given = np.array([0.1, 2.7, -3.3, 5.5], np.float32)
    model = _if_model()
    (found,) = computed(openvino_core, model, [given, np.array(True)])
    np.testing.assert_array_equal(found, -half(half(given) * half(np.array(3.001, np.float32))))
    (found,) = computed(openvino_core, model, [given, np.array(False)])
    np.testing.assert_array_equal(found, half(found))
