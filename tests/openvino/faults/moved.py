"""Faults of operations that move elements: other elements, or those of other memory."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino import opset15

from tests.openvino.faults.fault import Array, Fault, Step, model, random, steps

_DATA = random(2, 3, 4)
_FEW = np.arange(7, 12, dtype=np.int32)


def _packed() -> ov.Model:
    data = ops.parameter([2, 4], ov.Type.u2)
    columns = ops.gather(data, ops.constant([3, 1]), ops.constant(1))
    return model(ops.convert(columns, "f32"), data)


def _of_2_bits(*rows: tuple[int, int, int, int]) -> ov.Tensor:
    tensor = ov.Tensor(ov.Type.u2, ov.Shape([len(rows), 4]))
    bytes_ = [sum(number << 2 * at for at, number in enumerate(row)) for row in rows]
    tensor.data.reshape(-1).view(np.uint8)[:] = bytes_
    return tensor


def _gather_along() -> ov.Model:
    data, axis = ops.parameter([-1, -1, -1], np.float32), ops.parameter([], np.int32)
    return model(ops.gather(data, ops.constant([1, 0, 1]), axis), data, axis)


def _gather_of_few() -> ov.Model:
    data, indices = ops.parameter([5], np.int32), ops.parameter([2], np.int32)
    return model(ops.gather(data, indices, ops.constant(0)), data, indices)


def _batch_to_space() -> ov.Model:
    data = ops.parameter([1, 4, 2], np.float32)
    part, none = ops.split(data, ops.constant(1), 2).output(1), ops.constant([0, 0, 0])
    return model(ops.batch_to_space(part, ops.constant([1, 1, 1]), none, none), data)


def _scatter_update() -> ov.Model:
    data, indices = ops.parameter([4], np.int64), ops.parameter([1], np.int32)
    return model(ops.scatter_update(data, indices, ops.constant([50]), ops.constant(0)), data, indices)


def _slice_scatter() -> ov.Model:
    data, begin = ops.parameter([4], np.float32), ops.parameter([1], np.int64)
    step, axes = ops.constant([1]), ops.constant([0])
    written, last = ops.constant(np.array([9], np.float32)), ops.add(begin, ops.constant([1]))
    return model(opset15.slice_scatter(data, written, begin, last, step, axes), data, begin)


def _transpose() -> ov.Model:
    data = ops.parameter([4, -1], np.float32)
    transposed = ops.transpose(data, ops.constant(np.zeros(0, np.int64)))
    return model(ops.shape_of(transposed), data)


def _at(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


FAULTS: dict[str, Fault] = {
    "packed-elements": steps(
        _packed, Step([_of_2_bits((0, 1, 2, 3), (3, 2, 1, 0))], [np.array([[3, 1], [0, 2]])])
    ),
    "gather-computed-axis": steps(
        _gather_along,
        Step([_DATA, np.array(0, np.int32)], [_DATA[[1, 0, 1]]]),
        Step([_DATA, np.array(1, np.int32)], [_DATA[:, [1, 0, 1]]]),
    ),
    "gather-few-integers": steps(
        _gather_of_few,
        *(
            Step([_FEW, _at(4, at)], [_at(11, 0)])
            for at in (*range(5, 2000), *range(-2000, -5), 100_000, 5_000_000, 2_000_000_000)
        ),
    ),
    "batch-to-space-no-op": steps(_batch_to_space, Step([random(1, 4, 2)], [random(1, 4, 2)[:, 2:]])),
    "scatter-update-integers": steps(
        _scatter_update,
        Step([np.arange(4), _at(3)], [np.array([0, 1, 2, 50])]),
        Step([np.arange(4), _at(5)], None),
    ),
    "slice-scatter-computed-bounds": steps(
        _slice_scatter,
        Step([np.zeros(4, np.float32), np.array([0])], [np.array([9, 0, 0, 0])]),
        Step([np.zeros(4, np.float32), np.array([2])], [np.array([0, 0, 9, 0])]),
    ),
    "transpose-without-order": steps(_transpose, Step([random(4, 3)], [np.array([3, 4])])),
}
