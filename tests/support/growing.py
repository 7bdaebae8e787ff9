"""Models with growing states: attention with a cache, as in Optimum's language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from tests.support import stateful
from tests.support.models import Array

HEADS, WIDTH = 2, 8
SIZE = HEADS * WIDTH


def _heads(value: Any) -> Any:
    split = ops.reshape(value, ops.constant([0, 0, HEADS, WIDTH]), True)
    return ops.transpose(split, ops.constant([0, 2, 1, 3]))


def attention(
    layers: int = 2, fused: bool = True, bound: int = -1, reorders: bool = True, batch: int = -1
) -> ov.Model:
    """Return `layers` of attention over all x so far: ReadValue, Gather by `beam_idx`, Concat, Assign.

    `fused`: with ScaledDotProductAttention, for which OpenVINO's CPU device has its own cache. `bound`:
    the maximum cache length; `reorders`: whether there is a `beam_idx`.
    """
    random = np.random.default_rng(1)

    def projected(value: Any) -> Any:
        weights = ops.constant(random.standard_normal((SIZE, SIZE), np.float32) / 4)
        return ops.matmul(value, weights, False, False)

    x = stateful.source([batch, -1, SIZE])
    beams = stateful.source([-1], "beam_idx", ov.Type.i32)
    samples = ops.gather(ops.shape_of(x), ops.constant([0]), ops.constant(0))
    empty = ops.concat([samples, ops.constant(np.array([HEADS, 0, WIDTH]))], 0)
    begin = ops.broadcast(ops.constant(np.float32(0)), empty)
    shape = ov.PartialShape([batch, HEADS, ov.Dimension(0, bound) if bound > 0 else -1, WIDTH])
    hidden: Any = x
    assigns = []
    for layer in range(layers):
        query, key, value = (_heads(projected(hidden)) for _ in range(3))
        cached = []
        for letter, new in (("key", key), ("value", value)):
            name = f"past.{layer}.{letter}"
            past: Any = opset6.read_value(begin, name, ov.Type.f32, shape)
            if reorders:
                past = ops.gather(past, beams, ops.constant(0))
            cached.append(ops.concat([past, new], 2))
            assigns.append(opset6.assign(cached[-1], name))
        if fused:
            mixed = ops.scaled_dot_product_attention(query, cached[0], cached[1])
        else:
            scores = ops.matmul(ops.multiply(query, ops.constant(np.float32(0.35))), cached[0], False, True)
            mixed = ops.matmul(ops.softmax(scores, -1), cached[1], False, False)
        joined = ops.reshape(
            ops.transpose(mixed, ops.constant([0, 2, 1, 3])), ops.constant([0, 0, SIZE]), True
        )
        hidden = ops.add(hidden, projected(joined))
    y = stateful.named(hidden, "y")
    inputs = [x, beams] if reorders else [x]
    return stateful.model({"y": y}, assigns, inputs, "attention")


def appended(
    begin: Sequence[Sequence[int]] = (),
    heads: int = HEADS,
    element_type: ov.Type = ov.Type.f32,
    computed: bool = False,
) -> ov.Model:
    """Return attention on plain inputs, which any client can give in mismatched shapes.

    `begin`: the shapes of the initial keys and values, all ones; by default they have no positions.
    `heads`: -1 leaves them open. `computed`: keys and values are not the inputs, but computed from them.
    """
    bounds = [-1, heads, -1, WIDTH]
    query, *new = (stateful.source(bounds, name, element_type) for name in ("query", "key", "value"))
    beams = stateful.source([-1], "beam_idx", ov.Type.i32)
    cached, assigns = [], []
    for at, source in enumerate(new):
        name, given = source.get_friendly_name(), ops.tanh(source) if computed else source
        front = ops.gather(ops.shape_of(given), ops.constant([0, 1]), ops.constant(0))
        shape = ops.constant(list(begin[at])) if begin else ops.concat([front, ops.constant([0, WIDTH])], 0)
        ones = ops.broadcast(ops.constant(1, element_type), shape)
        past = ops.gather(stateful.read(ones, name, given), beams, ops.constant(0))
        cached.append(ops.concat([past, given], 2))
        assigns.append(opset6.assign(cached[-1], name))
    y = stateful.named(ops.scaled_dot_product_attention(query, *cached), "y")
    return stateful.model({"y": y}, assigns, [query, *new, beams], "appended")


def history(shape: Sequence[int] = (-1, 3), initial: Array | None = None) -> ov.Model:
    """Append x to `rows`, and show their sums, without rounding."""
    x = stateful.source([-1, 3])
    start = None if initial is None else ops.constant(initial)
    rows = ops.concat([stateful.read(start, "rows", x, shape), x], 0)
    y = stateful.named(ops.reduce_sum(rows, ops.constant([0]), False), "y")
    return stateful.model({"y": y}, [opset6.assign(rows, "rows")], [x], "history")


def steps(lengths: Sequence[int], batch: int = 2, seed: int = 0) -> list[list[ov.Tensor]]:
    """Return inputs of `attention` for steps of these lengths; every third one reorders the beams."""
    random = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        beams = random.integers(0, batch, batch) if number % 3 == 1 else np.arange(batch)
        x = random.standard_normal((batch, length, SIZE), np.float32)
        made.append([ov.Tensor(x), ov.Tensor(beams.astype(np.int32))])
    return made


def doubling() -> ov.Model:
    """`rows` becomes twice itself and x: more than any input suggests."""
    x = stateful.source([-1, 3])
    past = stateful.read(None, "rows", x)
    rows = ops.concat([past, past, x], 0)
    y = stateful.named(ops.reduce_sum(rows, ops.constant([0]), False), "y")
    return stateful.model({"y": y}, [opset6.assign(rows, "rows")], [x], "doubling")


def encoded() -> ov.Model:
    """Return a state fixed at a product of x, as Whisper's decoder keeps its encoder's keys."""
    x = stateful.source([-1, 3])
    random = np.random.default_rng(4)
    key = ops.matmul(x, ops.constant(random.random((3, 3), np.float32)), False, False)
    kept = opset6.read_value(key, "kept", ov.Type.f32, ov.PartialShape([-1, 3]))
    past = stateful.read(None, "rows", x)
    rows = ops.concat([past, x], 0)
    y = stateful.named(ops.matmul(rows, ops.matmul(kept, kept, True, False), False, False), "y")
    return stateful.model(
        {"y": y}, [opset6.assign(kept, "kept"), opset6.assign(rows, "rows")], [x], "encoded"
    )


def beside_a_static_one() -> ov.Model:
    """Return a model where `sum`, of fixed shape, begins as 5 and `rows` grows."""
    x = stateful.source([-1, 3])
    begin = ops.constant(np.full(3, 5, np.float32))
    total = ops.add(stateful.read(begin, "sum", begin), ops.reduce_sum(x, ops.constant([0]), False))
    rows = ops.concat([stateful.read(None, "rows", x), x], 0)
    y = stateful.named(ops.multiply(rows, total), "y")
    assigns = [opset6.assign(total, "sum"), opset6.assign(rows, "rows")]
    return stateful.model({"y": y}, assigns, [x], "beside")


def accumulated(name: str, element_type: ov.Type, rows: int, added: Any, begin: float) -> tuple[Any, Any]:
    """The read and the assigned value of a state of `rows` rows to which `added` is added."""
    state = VariableInfo()
    state.data_type, state.variable_id = element_type, name
    state.data_shape = ov.PartialShape([rows, 3])
    variable = Variable(state)
    count = ops.gather(ops.shape_of(added), ops.constant([0]), ops.constant(0))
    size = ops.concat([count, ops.constant([3])], 0) if rows < 0 else ops.constant([rows, 3])
    value = opset6.read_value(ops.broadcast(ops.constant(begin, element_type), size), variable)
    return value, opset6.assign(ops.add(value, ops.convert(added, element_type)), variable)
