"""Twenty ways to go wrong in f16, each with a harmless twin: the same layers with other sizes or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.arithmetic.models import constant
from tests.prediction.overflowing import F32, Case


def _normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(5).normal(mean, scale, shape).astype(F32)


def _data(*shape: int, name: str = "x", kind: Any = F32) -> ov.Node:
    return ops.parameter(list(shape), kind, name=name)


def _named(name: str, node: ov.Node) -> ov.Node:
    node.set_friendly_name(name)
    return node


def _number(value: float) -> ov.Node:
    return ops.constant(F32(value))


def _case(layer: str, output: ov.Node, *inputs: ov.Node, given: tuple[np.ndarray, ...] = ()) -> Case:
    return Case(ov.Model([ops.result(output)], list(inputs)), (layer,), given)


def _mean(value: ov.Node, *axes: int) -> ov.Node:
    return ops.reduce_mean(value, ops.constant(list(axes or (-1,))), True)


def _normalised(value: ov.Node, *axes: int) -> ov.Node:
    return ops.mvn(value, ops.constant(list(axes)), True, 1e-5, "inside_sqrt")


def rope_positions(wrong: bool) -> Case:
    """Positions as far as the mask reaches: f16 has steps of 2 there."""
    ids = _data(1, 8, name="position_ids", kind=np.int64)
    mask = _data(1, 4096 if wrong else 64, name="attention_mask", kind=np.int64)
    x = _data(1, 8, 16)
    rates = ops.constant((1000.0 ** -(np.arange(16) / 16)).astype(F32))
    angles = _named("angles", ops.multiply(ops.unsqueeze(ops.convert(ids, "f32"), ops.constant(2)), rates))
    turned = ops.multiply(x, _named("cos", ops.cos(angles)))
    seen = ops.convert(ops.reduce_max(mask, ops.constant([1]), True), "f32")
    return _case("cos", ops.multiply(turned, ops.unsqueeze(seen, ops.constant(2))), ids, mask, x)


def float_indices(wrong: bool) -> Case:
    """Indices as floats, up to the size of their table."""
    x = _data(1, 16)
    table = constant(1, 5000 if wrong else 500, 4)
    rows = ops.gather(table, ops.convert(x, "i64"), ops.constant(0))
    return _case("rows", ops.tanh(_named("rows", rows)), x)


def instance_norm(wrong: bool) -> Case:
    """More elements than 65504 in a mean: the sum of squares overflows."""
    x = _data(1, 2, 256, 260) if wrong else _data(1, 2, 32, 32)
    return _case("norm", _named("norm", _normalised(x, 2, 3)), x, given=(_normal(*x.shape, scale=4),))


def cumulative_sum(wrong: bool) -> Case:
    x = _data(1, 4096 if wrong else 64)
    sums = _named("sums", ops.cum_sum(x, ops.constant(1)))
    return _case("sums", ops.sqrt(sums), x, given=(np.full(x.shape, 40, F32),))


def saturated_constant(wrong: bool) -> Case:
    x = _data(1, 16)
    scales = ops.constant(np.full((1, 16), 3e5 if wrong else 3e4, F32))
    product = ops.multiply(ops.tanh(x), _named("scales", scales))
    return _case("scales", _named("product", product), x, given=(_normal(1, 16, scale=0.05),))


def logits(wrong: bool) -> Case:
    x = _data(1, 4, 64)
    weights = constant(1, 64, 16, scale=5e3 if wrong else 10)
    return _case("logits", _named("logits", ops.matmul(x, weights, False, False)), x)


def norm_in_steps(wrong: bool) -> Case:
    """A LayerNorm in steps, which becomes one MVN; it does not where its variance is used otherwise."""
    x = _data(1, 6, 64)
    tall = ops.multiply(x, _number(6000))
    centred = ops.subtract(tall, _mean(tall))
    variance = _mean(_named("squares", ops.power(centred, _number(2))))
    normal = ops.divide(centred, ops.sqrt(ops.add(variance, _number(1e-5))))
    if wrong:
        normal = ops.multiply(normal, ops.log(variance))
    return _case("squares", ops.matmul(normal, constant(4, 64, 16), False, False), x)


def tiny_epsilon(wrong: bool) -> Case:
    """An epsilon that f16 rounds to 0; wrong only where the squares do as well."""
    x = _data(1, 4, 32)
    squares = _named("squares", ops.multiply(x, x))
    root = ops.sqrt(ops.add(_mean(squares), _number(1e-12)))
    given = _normal(1, 4, 32, scale=1e-5 if wrong else 1)
    given[0, 0] = 0
    return _case("squares", ops.divide(x, root), x, given=(given,))


def squared_norm(wrong: bool) -> Case:
    x = _data(1, 4, 32)
    squares = _named("squares", ops.power(x, _number(2)))
    root = ops.sqrt(ops.add(_mean(squares), _number(1e-6)))
    weighted = ops.multiply(ops.multiply(x, ops.divide(_number(1), root)), constant(2, 32))
    return _case("squares", weighted, x, given=(_normal(1, 4, 32, scale=900 if wrong else 9),))


def depthwise(wrong: bool) -> Case:
    x = _data(1, 4, 16, 16)
    weights = constant(3, 4, 1, 1, 3, 3, scale=1.5e4 if wrong else 3)
    product = ops.group_convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1])
    return _case("depthwise", _normalised(_named("depthwise", product), 2, 3), x)


def huge_scale(wrong: bool) -> Case:
    x = _data(1, 32)
    scaled = _named("scaled", ops.multiply(x, _number(5e4 if wrong else 5e2)))
    return _case("scaled", ops.multiply(ops.abs(scaled), _number(1e-3)), x)


def large_logits(wrong: bool) -> Case:
    """Logits that f16 holds in steps of 16: their softmax sees no difference."""
    query, key, value = (_data(1, 2, 12, 64, name=name) for name in ("query", "key", "value"))
    weights = ops.softmax(ops.matmul(query, key, False, True), -1)
    given = [np.random.default_rng(each).normal(0, 0.4, (1, 2, 12, 64)).astype(F32) for each in range(3)]
    for each in given[:2]:
        each[..., 0] = 140 if wrong else 1
    output = ops.matmul(_named("weights", weights), value, False, False)
    return _case("weights", output, query, key, value, given=tuple(given))


def l2_normalise(wrong: bool) -> Case:
    x = _data(1, 4096)
    norm = _named("norm", ops.reduce_l2(x, ops.constant([-1]), True))
    return _case("norm", ops.divide(x, norm), x, given=(_normal(1, 4096, scale=3e3 if wrong else 3),))


def exponentials(wrong: bool) -> Case:
    """The logarithm of a sum of exponentials, without the maximum subtracted."""
    x = _data(1, 16)
    powers = _named("powers", ops.exp(x))
    total = ops.log(ops.reduce_sum(powers, ops.constant([-1]), True))
    return _case("powers", total, x, given=(_normal(1, 16, mean=20 if wrong else 2),))


def long_sum(wrong: bool) -> Case:
    x = _data(1, 60000 if wrong else 600)
    total = _named("total", ops.reduce_sum(ops.abs(x), ops.constant([-1]), True))
    return _case("total", ops.log(total), x, given=(_normal(*x.shape, scale=1e4 if wrong else 1),))


def variance(wrong: bool) -> Case:
    """E[x2] - E[x]2: a difference of large numbers."""
    x = _data(1, 4, 256)
    mean = _mean(x)
    found = ops.subtract(_mean(ops.multiply(x, x)), ops.multiply(mean, mean))
    given = _normal(1, 4, 256, mean=100 if wrong else 1)
    return _case("variance", _named("variance", found), x, given=(given,))


def tiny_divisor(wrong: bool) -> Case:
    x = _data(1, 16)
    quotient = ops.divide(ops.tanh(x), _number(7e-8 if wrong else 7e-3))
    quotient = _named("quotient", quotient)
    return _case("quotient", quotient, x, given=(_normal(1, 16, scale=1e-3),))


def embedding_offset(wrong: bool) -> Case:
    """Token embeddings around a large value, which a norm subtracts."""
    ids = _data(1, 8, name="input_ids", kind=np.int64)
    table = np.random.default_rng(2).normal(3000 if wrong else 0, 1, (100, 32)).astype(F32)
    rows = ops.gather(ops.constant(table), ids, ops.constant(0))
    return _case("norm", _named("norm", _normalised(rows, 2)), ids)


def mask(wrong: bool) -> Case:
    """A mask of -1e9: harmless before a softmax, not where it reaches the output."""
    x, hidden = _data(1, 4, 8), _data(1, 1, 8, name="hidden")
    lowest = ops.multiply(hidden, _named("lowest", ops.constant(np.full((1, 1, 8), -1e9, F32))))
    masked = ops.add(x, lowest)
    output = ops.reduce_max(masked, ops.constant([-1]), True) if wrong else ops.softmax(masked, -1)
    values = np.ones((1, 1, 8), F32) if wrong else np.array([[[0, 1, 0, 1, 1, 0, 0, 1]]], F32)
    return _case("lowest", output, x, hidden, given=(_normal(1, 4, 8), values))


def group_norm(wrong: bool) -> Case:
    x = _data(1, 4, 160, 256) if wrong else _data(1, 4, 16, 16)
    scale, bias = constant(1, 4, scale=1), constant(2, 4, scale=1)
    normal = _named("norm", ops.group_normalization(x, scale, bias, 2, 1e-5))
    return _case("norm", normal, x, given=(_normal(*x.shape, scale=4),))


PATTERNS: dict[str, Callable[[bool], Case]] = {
    each.__name__: each
    for each in (
        rope_positions, float_indices, instance_norm, cumulative_sum, saturated_constant, logits,
        norm_in_steps, tiny_epsilon, squared_norm, depthwise, huge_scale, large_logits, l2_normalise,
        exponentials, long_sum, variance, tiny_divisor, embedding_offset, mask, group_norm,
    )
}  # fmt: skip
