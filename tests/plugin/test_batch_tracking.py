"""Batch analysis: which models mix samples, which provably do not, and the reasons given.

Every accepted model is also computed, once as a batch and once sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin.batch.axes import NotSplittable
from softnpu.plugin.batch.tracking import track
from tests.support.batches import model_of, on_cpu, parameter, random, weights
from tests.support.cases import case

Build = Callable[[Any], Any]
const = ops.constant
SHAPE = (-1, 4, 6)


def _tracked(build: Build, *shape: int) -> tuple[ov.Model, Any]:
    x = parameter("x", shape or SHAPE)
    model = model_of(build(x), x)
    return model, track(model, [0])


def _constant(*shape: int) -> Any:
    return const(weights(*shape))


def _broadcast_zeros(x: Any) -> Any:
    """Zeros of shape [N, 6], derived from the shape of x: how frameworks begin a recurrence."""
    target = ops.gather(ops.shape_of(x), const([0, 2]), const(0))
    return ops.broadcast(const(np.float32(0.5)), target)


def _lstm(x: Any) -> Any:
    batch = ops.gather(ops.shape_of(x), const([0]), const(0))
    state = ops.broadcast(const(np.float32(0)), ops.concat([batch, const([1]), const([5])], 0))
    lengths = ops.broadcast(const(np.int64(4)), batch)
    return ops.lstm_sequence(
        x, state, state, lengths, _constant(1, 20, 6), _constant(1, 20, 5), _constant(1, 20), 5, "forward"
    ).output(0)


INDEPENDENT: dict[str, Build] = {
    "elementwise": lambda x: ops.tanh(ops.add(x, _constant(4, 6))),
    "convolution": lambda x: ops.convolution(x, _constant(3, 4, 3), [1], [0], [0], [1]),
    "pooling": lambda x: ops.max_pool(x, [1], [1], [0], [0], [2]).output(0),
    "matmul by weights": lambda x: ops.matmul(x, _constant(6, 3), False, False),
    "matmul by transposed weights": lambda x: ops.matmul(_constant(5, 4), x, False, False),
    "matmul with itself": lambda x: ops.matmul(x, x, False, True),
    "softmax inside": lambda x: ops.softmax(x, 2),
    "softmax from the end": lambda x: ops.softmax(x, -1),
    "mean inside": lambda x: ops.reduce_mean(x, const([1, 2]), False),
    "mean and broadcast": lambda x: ops.subtract(x, ops.reduce_mean(x, const([1]), True)),
    "cumsum inside": lambda x: ops.cum_sum(x, const(1)),
    "top k": lambda x: ops.topk(x, const(2), 1, "max", "value").output(0),
    "flatten": lambda x: ops.reshape(x, const([-1, 24]), False),
    "flatten by zero": lambda x: ops.reshape(x, const([0, -1]), True),
    "rows of samples": lambda x: ops.reshape(
        ops.matmul(ops.reshape(x, const([-1, 6]), False), _constant(6, 2), False, False),
        const([-1, 4, 2]),
        False,
    ),
    "reshape by its own shape": lambda x: ops.reshape(
        x, ops.concat([ops.gather(ops.shape_of(x), const([0]), const(0)), const([3, 8])], 0), False
    ),
    "transpose and back": lambda x: ops.transpose(
        ops.softmax(ops.transpose(x, const([2, 0, 1])), 0), const([1, 2, 0])
    ),
    "unsqueeze": lambda x: ops.relu(ops.unsqueeze(x, const([0]))),
    "split and concat": lambda x: ops.concat(ops.split(x, const(1), 2).outputs()[::-1], 2),
    "slice inside": lambda x: ops.slice(x, const([1]), const([3]), const([1]), const([1])),
    "slice of everything": lambda x: ops.slice(
        x, const([0, 1]), const([2**31 - 1, 3]), const([1, 1]), const([0, 1])
    ),
    "strided slice": lambda x: ops.strided_slice(
        x, const([0, 0, 1]), const([0, 0, 5]), const([1, 1, 2]), [1, 1, 0], [1, 1, 0]
    ),
    "gather inside": lambda x: ops.gather(x, const([3, 1, 1]), const(1)),
    "lookup": lambda x: ops.gather(_constant(8, 3), ops.convert(ops.clamp(x, 0.0, 7.0), "i64"), const(0)),
    "pad inside": lambda x: ops.pad(x, const([0, 1, 0]), const([0, 0, 2]), "constant"),
    "tile inside": lambda x: ops.tile(x, const([1, 2, 1])),
    "made of the shape": lambda x: ops.add(ops.reduce_sum(x, const([1]), False), _broadcast_zeros(x)),
    "length of the sequence": lambda x: ops.multiply(
        x, ops.convert(ops.gather(ops.shape_of(x), const([1]), const(0)), "f32")
    ),
    "select": lambda x: ops.select(ops.greater(x, const(np.float32(0))), x, ops.negative(x)),
    "mvn": lambda x: ops.mvn(x, const([1, 2]), True, 1e-5, "inside_sqrt"),
    "batch norm": lambda x: ops.batch_norm_inference(
        x, _constant(4), _constant(4), _constant(4), const(np.ones(4, np.float32)), 1e-5
    ),
    "recurrent": _lstm,
    "one hot": lambda x: ops.one_hot(
        ops.convert(ops.clamp(x, 0.0, 2.0), "i64"), const(3), const(np.float32(1)), const(np.float32(0)), -1
    ),
    "gather elements": lambda x: ops.gather_elements(x, ops.convert(ops.clamp(x, 0.0, 3.0), "i64"), 1),
    "einsum": lambda x: ops.einsum([x, _constant(6, 2)], "bij,jk->bik"),
    "attention": lambda x: ops.scaled_dot_product_attention(x, x, x),
}


def test_independent_samples_are_proven_independent() -> None:
    data = random(3, 4, 6)
    for name, build in INDEPENDENT.items():
        with case(name):
            model, tracked = _tracked(build)
            [(axis, sample)] = tracked.outputs
            [whole] = on_cpu(model, [data])
            parts = [on_cpu(model, [data[at : at + 1]])[0] for at in range(3)]
            assert all(part.shape == sample for part in parts)
            np.testing.assert_allclose(np.concatenate(parts, axis), whole, rtol=1e-4, atol=1e-5)


MIXING: dict[str, tuple[Build, str]] = {
    "softmax": (lambda x: ops.softmax(x, 0), "Softmax.*normalises over axis 0, which is that of the batch"),
    "softmax from the end": (lambda x: ops.softmax(x, -3), "normalises over axis 0"),
    "log softmax": (lambda x: ops.log_softmax(x, 0), "normalises over axis 0"),
    "statistics": (
        lambda x: ops.subtract(x, ops.reduce_mean(x, const([0]), True)),
        "ReduceMean.*reduces axis 0",
    ),
    "negative axis": (lambda x: ops.reduce_max(x, const([-3]), True), "reduces axis 0"),
    "mvn": (lambda x: ops.mvn(x, const([0, 2]), True, 1e-5, "inside_sqrt"), "normalises over axis 0"),
    "cumsum": (lambda x: ops.cum_sum(x, const(0)), "CumSum.*works along axis 0"),
    "top k": (lambda x: ops.topk(x, const(1), 0, "max", "value").output(0), "works along axis 0"),
    "roll": (lambda x: ops.roll(x, const([1]), const([0])), "rolls axis 0"),
    "concat": (lambda x: ops.concat([x, x], 0), "joins tensors on axis 0"),
    "first sample": (lambda x: ops.gather(x, const([0]), const(0)), "picks samples"),
    "first slice": (
        lambda x: ops.slice(x, const([0]), const([1]), const([1]), const([0])),
        "ends at 1 on axis 0",
    ),
    "backwards": (
        lambda x: ops.strided_slice(x, const([0]), const([0]), const([-1]), [1], [1]),
        "takes a part of axis 0",
    ),
    "transposed away": (
        lambda x: ops.reshape(ops.transpose(x, const([1, 0, 2])), const([-1, 24]), False),
        "Reshape",
    ),
    "matmul over samples": (
        lambda x: ops.matmul(
            ops.transpose(ops.reshape(x, const([-1, 24]), False), const([1, 0])),
            ops.reshape(x, const([-1, 24]), False),
            False,
            False,
        ),
        "MatMul.*sums over the samples",
    ),
    "similarity of samples": (
        lambda x: ops.matmul(
            ops.reshape(x, const([-1, 24]), False), ops.reshape(x, const([-1, 24]), False), False, True
        ),
        "multiplies samples of one input with those of the other",
    ),
    "divided by the batch": (
        lambda x: ops.divide(x, ops.convert(ops.gather(ops.shape_of(x), const([0]), const(0)), "f32")),
        "depends on how many samples there are",
    ),
    "numbered samples": (
        lambda x: ops.add(
            x,
            ops.unsqueeze(
                ops.range(const(0), ops.gather(ops.shape_of(x), const(0), const(0)), const(1), "f32"),
                const([1, 2]),
            ),
        ),
        "depends on how many samples there are",
    ),
    "output without a batch": (lambda x: [x, const(np.ones(3, np.float32))], "computes has no batch"),
    "indices of a pooling": (
        lambda x: ops.max_pool(x, [1], [1], [0], [0], [2]).output(1),
        "indices of a pooling, which count through the whole batch",
    ),
    "einsum over samples": (lambda x: ops.einsum([x], "bij->ij"), "sums over the samples"),
    "convolution across samples": (
        lambda x: ops.convolution(ops.transpose(x, const([1, 0, 2])), _constant(2, 3, 1), [1], [0], [0], [1]),
        "cannot be reshaped to a batch of|Convolution",
    ),
    "hard-coded batch": (lambda x: ops.reshape(x, const([3, -1]), False), "Reshape|batch of"),
    "constant for each sample": (lambda x: ops.add(x, _constant(3, 1, 1)), "reshaped to a batch of 97"),
    "random": (
        lambda x: ops.add(
            x, ops.random_uniform(const([1, 4, 6]), const(np.float32(0)), const(np.float32(1)), "f32")
        ),
        "draws random numbers",
    ),
}


def test_mixed_samples_are_refused_with_the_operation() -> None:
    for name, (build, says) in MIXING.items():
        with case(name):
            with pytest.raises(NotSplittable, match=says) as refused:
                _tracked(build)
            assert refused.value.mixes


def test_an_unknown_operation_ends_the_proof_unless_it_is_trusted() -> None:
    x = parameter("x", (-1, 4, 8, 8))
    model = model_of(ops.space_to_batch(x, [1, 1, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0]), x)
    with pytest.raises(NotSplittable, match=r"SpaceToBatch.*nothing is known") as refused:
        track(model, [0])
    assert not refused.value.mixes
    tracked = track(model, [0], trusting=True)
    assert tracked.outputs == ((0, (4, 4, 4, 4)),)
    assert "SpaceToBatch" in tracked.trusted[0]


def test_two_batched_inputs_and_a_shared_one() -> None:
    left, right, scale = parameter("left", (-1, 4)), parameter("right", (-1, 4)), parameter("scale", (4,))
    model = model_of(ops.multiply(ops.add(left, right), scale), left, right, scale)
    assert track(model, [0, 0, None]).outputs == ((0, (1, 4)),)
    with pytest.raises(NotSplittable, match=r"Add.*its shape is"):
        track(model, [0, None, None])
