"""A language model as programs run it on an NPU: a decoder whose caches are states of a fixed shape.

One inference takes one token and its position, and returns the logits of the next one. The states hold keys
and values of the last `CONTEXT` tokens, two for each layer, the newest at the end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as ops

LAYERS: Final = 12
WIDTH: Final = 512
HEADS: Final = 8
CONTEXT: Final = 128
VOCABULARY: Final = 8192
_FEED_FORWARD: Final = 4


class _Builder:
    def __init__(self, layers: int, width: int) -> None:
        self._layers, self._width = layers, width
        self._random = np.random.default_rng(0)
        self._assigns: list[Any] = []

    def build(self) -> ov.Model:
        token = _input("token", [1], ov.Type.i64)
        position = _input("position", [1], ov.Type.i64)
        # positions without a token are masked out
        ages = ops.constant(np.arange(CONTEXT - 1, -1, -1, dtype=np.int64))
        penalty = ops.select(
            ops.less_equal(ages, position), ops.constant(np.float32(0)), ops.constant(np.float32(-1e9))
        )
        table = ops.constant(self._numbers(VOCABULARY, self._width))
        places = ops.constant(self._numbers(CONTEXT, self._width))
        hidden: Any = ops.add(
            ops.gather(table, token, ops.constant(0)), ops.gather(places, position, ops.constant(0))
        )
        for layer in range(self._layers):
            hidden = ops.add(hidden, self._attention(layer, _normalized(hidden), penalty))
            hidden = ops.add(hidden, self._feed_forward(_normalized(hidden)))
        logits = self._product(_normalized(hidden), self._width, VOCABULARY)
        logits.output(0).set_names({"logits"})
        return ov.Model([ops.result(logits)], self._assigns, [token, position], "language_model")

    def _attention(self, layer: int, hidden: Any, penalty: Any) -> Any:
        query = self._heads(self._product(hidden, self._width, self._width))
        keys, values = (
            self._cached(f"past.{layer}.{kind}", self._heads(self._product(hidden, self._width, self._width)))
            for kind in ("key", "value")
        )
        scale = ops.constant(np.float32((self._width / HEADS) ** -0.5))
        scores = ops.matmul(ops.multiply(query, scale), keys, False, True)
        mixed = ops.matmul(ops.softmax(ops.add(scores, penalty), -1), values, False, False)
        return self._product(
            ops.reshape(mixed, ops.constant([1, self._width]), False), self._width, self._width
        )

    def _cached(self, name: str, newest: Any) -> Any:
        """Append the newest value to the state, dropping the oldest."""
        shape = [1, HEADS, CONTEXT - 1, self._width // HEADS]
        past = opset6.read_value(ops.constant(np.zeros(shape, np.float32)), name, ov.Type.f32, shape)
        joined = ops.concat([past, newest], 2)
        first, last, step, axis = (ops.constant([number]) for number in (1, CONTEXT, 1, 2))
        self._assigns.append(opset6.assign(ops.slice(joined, first, last, step, axis), name))
        return joined

    def _heads(self, value: Any) -> Any:
        return ops.reshape(value, ops.constant([1, HEADS, 1, self._width // HEADS]), False)

    def _feed_forward(self, hidden: Any) -> Any:
        inner = _FEED_FORWARD * self._width
        return self._product(ops.gelu(self._product(hidden, self._width, inner), "erf"), inner, self._width)

    def _product(self, value: Any, inputs: int, outputs: int) -> Any:
        return ops.matmul(value, ops.constant(self._numbers(inputs, outputs)), False, False)

    def _numbers(self, rows: int, columns: int) -> Any:
        return self._random.standard_normal((rows, columns), np.float32) * np.float32(rows**-0.5)


def build(layers: int = LAYERS, width: int = WIDTH) -> ov.Model:
    """Map `token` and `position`, i64 [1], to `logits`, f32 [1, VOCABULARY]; `HEADS` divides `width`."""
    return _Builder(layers, width).build()


def _input(name: str, shape: list[int], kind: ov.Type) -> Any:
    made = ops.parameter(shape, kind, name=name)
    made.output(0).set_names({name})
    return made


def _normalized(value: Any) -> Any:
    return ops.mvn(value, ops.constant([1]), True, 1e-5, "INSIDE_SQRT")
