"""Axes and bounds that are computed: each inference has its own, of which OpenVINO would keep the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino import opset15

from softnpu.plugin import Core

Array = npt.NDArray[Any]
WHOLE = {"NPU_BATCH_MODE": "COMPILER"}
DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def _random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def _shape(data: Array, dynamic: bool) -> list[int]:
    return [-1] * data.ndim if dynamic else list(data.shape)


FEW = np.arange(5, dtype=np.int32)
GATHERED: dict[str, tuple[Array, Array, int]] = {
    "rows": (_random(2, 3, 4), np.array([1, 0, 1], np.int32), 0),
    "a table of indices": (_random(2, 3, 4), np.array([[1, 0], [1, 1]], np.int32), 0),
    "one": (_random(2, 3, 4), np.array(-1, np.int32), 0),
    "of one dimension": (FEW, np.array([4, -1], np.int32), 0),
    "in batches": (_random(2, 3, 4), np.array([[1, 0], [2, -1]], np.int32), 1),
    "in one batch": (_random(1, 3, 4), np.array([[1, 0]], np.int32), 1),
    "of no rows": (_random(2, 0, 4), np.array([1], np.int32), 0),
}


def _gathered(data: Array, indices: Array, axis: int, batches: int) -> Array:
    if not batches:
        return np.take(data, indices, axis)
    at = axis - 1 if axis > 0 else axis
    return np.stack([np.take(one, rows, at) for one, rows in zip(data, indices, strict=True)])


@DYNAMIC
@pytest.mark.parametrize("name", GATHERED)
def test_a_gather_along_an_axis_that_is_computed(shared_core: Core, name: str, dynamic: bool) -> None:
    data, indices, batches = GATHERED[name]
    array = ops.parameter(_shape(data, dynamic), data.dtype)
    axis = ops.parameter([], np.int32)
    gathered = ops.gather(array, ops.constant(indices), ops.add(axis, ops.constant(np.int32(1))), batches)
    more = ops.add(gathered, ops.constant(1, gathered.get_output_element_type(0)))
    model = ov.Model([ops.result(gathered), ops.result(more)], [array, axis], "axis")
    request = shared_core.compile_model(model, "NPU", WHOLE).create_infer_request()
    for number in (*range(batches, data.ndim), *range(batches - data.ndim, 0), batches):
        if 0 in data.shape and data.shape[number] == 0:
            continue  # no index is right
        expected = _gathered(data, indices, number, batches)
        results = request.infer([data, np.array(number - 1, np.int32)])
        assert results[0].dtype == data.dtype
        np.testing.assert_array_equal(results[0], expected)
        np.testing.assert_array_equal(results[1], expected + 1)
    for number in (data.ndim, -data.ndim - 1, 1000):
        if data.size:
            with pytest.raises(RuntimeError, match="Gather"):
                request.infer([data, np.array(number - 1, np.int32)])


@DYNAMIC
def test_a_slice_along_axes_that_are_computed(shared_core: Core, dynamic: bool) -> None:
    data = _random(4, 5, 6)
    array = ops.parameter(_shape(data, dynamic), np.float32)
    starts, axes = (ops.parameter([2], np.int32) for _ in range(2))
    stops, steps = ops.constant(np.array([4, -1], np.int32)), ops.constant(np.array([2, 1], np.int32))
    model = ov.Model([ops.result(ops.slice(array, starts, stops, steps, axes))], [array, starts, axes], "m")
    request = shared_core.compile_model(model, "NPU", WHOLE).create_infer_request()
    for first, second in ((0, 1), (2, 1), (-1, 0), (1, -1), (0, 1)):
        parts = [slice(None)] * 3
        parts[first], parts[second] = slice(1, 4, 2), slice(2, -1)
        given = [data, np.array([1, 2], np.int32), np.array([first, second], np.int32)]
        np.testing.assert_array_equal(request.infer(given)[0], data[tuple(parts)])
    for wrong in (3, -4, 1000):
        with pytest.raises(RuntimeError, match="Slice"):
            request.infer([data, np.array([1, 2], np.int32), np.array([0, wrong], np.int32)])


Bounds = tuple[list[int], list[int], list[int]]
Shape = tuple[int, ...]
SCATTERED: dict[str, tuple[Shape, list[int] | None, Shape, list[Bounds], list[Bounds]]] = {
    "numbers": (
        (6,), [0], (2,),
        [([0], [2], [1]), ([3], [5], [1]), ([1], [5], [2]), ([-2], [99], [1]), ([4], [0], [-2])],
        [([0], [3], [1]), ([0], [1], [1]), ([0], [4], [0])],
    ),
    "rows": (
        (4, 6), [0], (2, 6),
        [([0], [2], [1]), ([1], [3], [1]), ([-2], [99], [1])],
        [([0], [3], [1]), ([0], [1], [1]), ([0], [2], [0])],
    ),
    "the last axis": ((4, 6), [-1], (4, 2), [([0], [2], [1]), ([1], [3], [1])], [([0], [6], [1])]),
    "two axes": (
        (4, 6), [1, 0], (2, 2),
        [([0, 0], [2, 2], [1, 1]), ([1, 2], [5, 99], [2, 1])], [([0, 0], [2, 1], [1, 1])],
    ),
    "all axes": ((4, 6), None, (2, 6), [([0, 0], [2, 6], [1, 1]), ([1, 0], [3, 6], [1, 1])], []),
}  # fmt: skip
"""Shape, axes, shape of what is written, right bounds, and those for which it is too much or too little."""


@DYNAMIC
@pytest.mark.parametrize("kind", ["float32", "int32", "int8"])
@pytest.mark.parametrize("name", SCATTERED)
def test_a_slice_scatter_of_bounds_that_are_computed(
    shared_core: Core, name: str, kind: str, dynamic: bool
) -> None:
    shape, axes, size, right, wrong = SCATTERED[name]
    data, updates = (np.arange(np.prod(each)).reshape(each).astype(kind) for each in (shape, size))
    inputs = [ops.parameter(_shape(each, dynamic), each.dtype) for each in (data, updates)]
    inputs += [ops.parameter([len(right[0][0])], np.int64) for _ in range(3)]
    last = [] if axes is None else [ops.constant(axes)]
    model = ov.Model([ops.result(opset15.slice_scatter(*inputs, *last).output(0))], inputs, "m")
    request = shared_core.compile_model(model, "NPU", WHOLE).create_infer_request()
    for bounds in (*right, right[0]):
        expected, parts = data.copy(), [slice(None)] * data.ndim
        for axis, *part in zip(axes or range(data.ndim), *bounds, strict=True):
            parts[axis] = slice(*part)
        expected[tuple(parts)] = updates
        np.testing.assert_array_equal(request.infer([data, updates, *map(np.array, bounds)])[0], expected)
    for bounds in wrong:
        with pytest.raises(RuntimeError):
            request.infer([data, updates, *map(np.array, bounds)])


def test_a_slice_scatter_along_axes_that_are_computed(shared_core: Core) -> None:
    data, updates = _random(4, 4), _random(4, 2)
    inputs = [ops.parameter(list(each.shape), np.float32) for each in (data, updates)]
    inputs += [ops.parameter([1], np.int64) for _ in range(4)]
    model = ov.Model([ops.result(opset15.slice_scatter(*inputs).output(0))], inputs, "m")
    request = shared_core.compile_model(model, "NPU", WHOLE).create_infer_request()
    start, stop, step = np.array([1]), np.array([3]), np.array([1])
    for axis in (1, -1):
        expected = data.copy()
        expected[:, 1:3] = updates
        given = [data, updates, start, stop, step, np.array([axis])]
        np.testing.assert_array_equal(request.infer(given)[0], expected)
    for axis in (0, 5, -3):
        with pytest.raises(RuntimeError):
            request.infer([data, updates, start, stop, step, np.array([axis])])


@pytest.mark.parametrize("groups", [False, True])
def test_a_deconvolution_to_a_shape_that_inputs_give_is_refused(shared_core: Core, groups: bool) -> None:
    array, shape = ops.parameter([-1, 3, -1, -1], np.float32), ops.parameter([2], np.int64)
    none, one = [0, 0], [1, 1]
    make = ops.group_convolution_backprop_data if groups else ops.convolution_backprop_data
    weights = ops.constant(_random(*([1] if groups else []), 3, 2, 3, 3))
    model = ov.Model([ops.result(make(array, weights, one, shape, none, none, one))], [array, shape], "m")
    with pytest.raises(RuntimeError, match=r"ConvolutionBackpropData\): an output shape that inputs give"):
        shared_core.compile_model(model, "NPU").create_infer_request()
