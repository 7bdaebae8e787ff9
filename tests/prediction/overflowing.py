"""Models known to go wrong in f16 on silicon, and right in f32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.arithmetic.models import constant

F32 = np.float32


@dataclass(frozen=True)
class Case:
    """A model, the layers to be named, and the values of its inputs."""

    model: ov.Model
    layers: tuple[str, ...]
    given: tuple[np.ndarray, ...]


def _normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, shape).astype(F32)


def _named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node


def _rms(x: ov.Node, name: str, width: int) -> ov.Node:
    squares = _named(ops.power(x, ops.constant(F32(2))), f"{name}/square")
    mean = _named(ops.reduce_mean(squares, ops.constant([-1]), True), f"{name}/mean")
    stable = _named(ops.add(mean, ops.constant(F32(1e-6))), f"{name}/stable")
    root = _named(ops.sqrt(stable), f"{name}/root")
    inverse = _named(ops.divide(ops.constant(F32(1)), root), f"{name}/inverse")
    scaled = _named(ops.multiply(x, inverse), f"{name}/scaled")
    return _named(ops.multiply(scaled, constant(77, width, scale=1.0)), f"{name}/weighted")


def feed_forward() -> Case:
    """As in T5: the second product exceeds 65504, and a root mean square brings it back."""
    x = ops.parameter([1, 8, 64], F32, name="x")
    gate = ops.gelu(ops.matmul(x, constant(1, 64, 128, scale=3), False, False), "tanh")
    wide = _named(ops.multiply(gate, ops.matmul(x, constant(2, 64, 128, scale=3), False, False)), "gated")
    product = _named(ops.matmul(wide, constant(3, 128, 64, scale=60), False, False), "wo")
    sum_ = _named(ops.add(x, product), "residual")
    head = ops.matmul(_rms(sum_, "norm", 64), constant(4, 64, 16), False, False)
    return Case(ov.Model([ops.result(head)], [x]), ("wo",), (_normal(5, 1, 8, 64),))


def add_before_norm() -> Case:
    """As in Gemma 3: two values that f16 holds, whose sum it does not."""
    x, y = (ops.parameter([1, 8, 64], F32, name=name) for name in "xy")
    sum_ = _named(ops.add(x, y), "residual")
    head = ops.matmul(_rms(sum_, "norm", 64), constant(4, 64, 16), False, False)
    given = [_normal(seed, 1, 8, 64, scale=20) for seed in (6, 7)]
    for each in given:
        each[:, :, 3] = 50000
    return Case(ov.Model([ops.result(head)], [x, y]), ("residual",), tuple(given))


def large_mvn() -> Case:
    """Over more than 65504 elements: the sum of squares overflows inside the operation."""
    x = ops.parameter([1, 2, 256, 512], F32, name="x")
    normal = _named(ops.mvn(x, ops.constant([2, 3]), True, 1e-6, "inside_sqrt"), "mvn")
    model = ov.Model([ops.result(ops.multiply(normal, constant(1, 1, 2, 1, 1, scale=1)))], [x])
    return Case(model, ("mvn",), (_normal(1, 1, 2, 256, 512, scale=4),))


def absorbed() -> Case:
    """A variance as E[x2] - E[x]2, which no pass fuses: it overflows, outputs are finite and wrong."""
    x = ops.parameter([1, 6, 64], F32, name="x")
    tall = _named(ops.multiply(x, ops.constant(F32(600))), "tall")
    mean = ops.reduce_mean(tall, ops.constant([-1]), True)
    centred = _named(ops.subtract(tall, mean), "norm/centred")
    square = _named(ops.power(tall, ops.constant(F32(2))), "norm/square")
    squares = _named(ops.reduce_mean(square, ops.constant([-1]), True), "norm/squares")
    variance = _named(ops.subtract(squares, ops.multiply(mean, mean)), "norm/variance")
    root = _named(ops.sqrt(ops.add(variance, ops.constant(F32(1e-5)))), "norm/root")
    normal = _named(ops.divide(centred, root), "norm/normal")
    head = ops.matmul(normal, constant(4, 64, 16), False, False)
    given = _normal(8, 1, 6, 64, scale=2)
    given += 0.1 - given.mean(-1, keepdims=True)  # the square of the mean does not overflow
    return Case(ov.Model([ops.result(head)], [x]), ("norm/square",), (given,))


def large_logits() -> Case:
    """Attention whose logits exceed 65504, so that the largest one is lost."""
    return _attention("logits", common=280.0, scale=4.0)


def coarse_logits() -> Case:
    """Attention whose logits f16 holds, but in steps of 16: the softmax no longer sees a difference."""
    return _attention("weights", common=140.0, scale=0.4)


def in_a_body() -> Case:
    """The body of a Loop, of which only counts are known."""
    inner = ops.parameter([1, 4], F32)
    large = _named(ops.multiply(inner, ops.constant(F32(1e5))), "large")
    small = ops.multiply(ops.abs(large), ops.constant(F32(1e-4)))
    body = ov.Model([ops.result(small), ops.result(ops.constant(True))], [inner])
    x = ops.parameter([1, 4], F32, name="x")
    loop = ops.loop(ops.constant(np.int64(2)), ops.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(inner, x.output(0), body.results[0].output(0))
    model = ov.Model([ops.result(loop.get_iter_value(body.results[0].output(0), -1))], [x])
    return Case(model, ("large",), (np.full((1, 4), 3, F32),))


def _attention(layer: str, common: float, scale: float) -> Case:
    """Return attention whose queries and keys are similar, so that their products are large and alike."""
    inputs = [ops.parameter([1, 2, 12, 64], F32, name=name) for name in ("query", "key", "value")]
    logits = _named(ops.matmul(inputs[0], inputs[1], False, True), "logits")
    weights = _named(ops.softmax(logits, -1), "weights")
    model = ov.Model([ops.result(ops.matmul(weights, inputs[2], False, False))], inputs)
    given = [_normal(seed, 1, 2, 12, 64, scale=each) for seed, each in ((1, scale), (2, scale), (3, 1.0))]
    for each in given[:2]:
        each[..., 0] = common
    return Case(model, (layer,), tuple(given))


CASES: dict[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (feed_forward, add_before_norm, large_mvn, absorbed, large_logits, coarse_logits)
}
