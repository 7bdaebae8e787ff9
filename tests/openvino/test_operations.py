"""Operations that OpenVINO's CPU device computes wrongly: softnpu follows their specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core

Array = npt.NDArray[np.float32]
DATA = np.arange(1, 17, dtype=np.float32).reshape(4, 4)


def _numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def _inferred(core: Core, outputs: list[Any], parameters: list[Any], inputs: list[Any]) -> list[Array]:
    compiled = core.compile_model(ov.Model(outputs, parameters, "m"), "NPU", {"NPU_BATCH_MODE": "COMPILER"})
    request = compiled.create_infer_request()
    for _ in range(2):
        for index in range(len(outputs)):
            request.get_output_tensor(index).data[...] = 777
        request.infer(inputs)
    return [np.array(request.get_output_tensor(index).data) for index in range(len(outputs))]


@pytest.mark.parametrize("given", ["constant", "input"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("data", [DATA, np.array(3, np.float32)], ids=["matrix", "scalar"])
def test_a_tile_without_repeats_is_written(
    shared_core: Core, given: str, before: bool, data: npt.NDArray[np.float32]
) -> None:
    array = ops.parameter(list(data.shape), np.float32)
    repeats = ops.constant(np.zeros(0, np.int64)) if given == "constant" else ops.parameter([0], np.int64)
    source = ops.add(array, ops.constant(np.float32(0.5))) if before else array
    inputs = [array] if given == "constant" else [array, repeats]
    model = ov.Model([ops.tile(source, repeats)], inputs, "tile")
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    request.get_output_tensor(0).data[...] = 777
    result = request.infer([data] if given == "constant" else [data, np.zeros(0, np.int64)])[0]
    assert result.shape == data.shape
    np.testing.assert_array_equal(result, data + 0.5 if before else data)


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [
        ((2, 3, 3, 2), (2, 1, 2, 2, 3)),
        ((2, 3, 3, 2), (3, 1, 2, 1, 1, 2)),
        ((2, 2, 3, 3, 1), (2, 2, 3, 3)),
        ((3, 2, 3, 2, 4, 3), (2, 2, 2, 1, 3)),
        ((2, 3), (3,)),
    ],
)
def test_a_tile_with_more_or_less_repeats_than_dimensions(
    shared_core: Core, shape: tuple[int, ...], repeats: tuple[int, ...]
) -> None:
    data = _numbers(*shape)
    array = ops.parameter(list(shape), np.float32)
    (result,) = _inferred(shared_core, [ops.tile(array, ops.constant(list(repeats)))], [array], [data])
    np.testing.assert_array_equal(result, np.tile(data, repeats))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batch_dims", [1, -1])
def test_a_gather_of_one_batch(shared_core: Core, count: int, batch_dims: int) -> None:
    """More indices follow those of the input in memory: OpenVINO reads them."""
    rows = np.arange(count, dtype=np.int32)[::-1].reshape(1, count)
    data = _numbers(1, 5, 2, 3)
    array, indices = ops.parameter([1, 5, 2, 3], np.float32), ops.parameter([1, count], np.int32)
    gathered = ops.gather(array, indices, ops.constant(1), batch_dims)
    (result,) = _inferred(shared_core, [gathered], [array, indices], [data, rows])
    np.testing.assert_array_equal(result, data[:, rows[0]])


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "int16"])
@pytest.mark.parametrize("size", [2, 5, 64])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_gather_of_few_integers_is_zero_where_there_are_none(
    shared_core: Core, kind: str, size: int, dynamic: bool
) -> None:
    """OpenVINO takes them for a part of a shape, and reads wherever an index points."""
    data = np.arange(7, 7 + size).astype(kind)
    array, indices = ops.parameter([-1 if dynamic else size], np.dtype(kind)), ops.parameter([4], np.int32)
    (result,) = _inferred(
        shared_core,
        [ops.gather(array, indices, ops.constant(0))],
        [array, indices],
        [data, np.array([size - 1, -size, size, 1_000_000], np.int32)],
    )
    np.testing.assert_array_equal(result, [data[-1], data[0], 0, 0])


@pytest.mark.parametrize(
    ("shapes", "transposed"),
    [
        ([(2, 3, 0), (0, 4)], (False, False)),
        ([(1, 1, 0), (3, 0)], (False, True)),
        ([(2, 0, 4), (2, 0, 3)], (True, False)),
        ([(0,), (0, 5)], (False, False)),
        ([(3, 0), (0,)], (False, False)),
        ([(0,), (0,)], (False, False)),
    ],
)
def test_a_product_over_nothing_is_zero(
    shared_core: Core, shapes: list[tuple[int, ...]], transposed: tuple[bool, bool]
) -> None:
    parameters = [ops.parameter(list(shape), np.float32) for shape in shapes]
    product = ops.matmul(parameters[0], parameters[1], *transposed)
    expected = product.get_output_partial_shape(0).to_shape()
    (result,) = _inferred(
        shared_core, [product], parameters, [np.zeros(shape, np.float32) for shape in shapes]
    )
    np.testing.assert_array_equal(result, np.zeros(expected, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("rows", [2, -1], ids=["static", "dynamic"])
def test_a_pad_with_a_computed_value(shared_core: Core, dtype: type[Any], rows: int) -> None:
    array, value = ops.parameter([rows, 3], dtype), ops.parameter([], dtype)
    padded = ops.pad(array, ops.constant([1, -1]), ops.constant([0, 2]), "constant", value)
    request = shared_core.compile_model(ov.Model([padded], [array, value], "m"), "NPU").create_infer_request()
    data = np.arange(6).reshape(2, 3).astype(dtype)
    for number in (5, 6, 6, 7):
        expected = np.pad(data[:, 1:], [(1, 0), (0, 2)], constant_values=number)
        np.testing.assert_array_equal(request.infer([data, np.array(number, dtype)])[0], expected)


def _iterated(data: Any) -> Any:
    """The input times 1.5, three times, in a Loop."""
    loop = ops.loop(ops.constant(3), ops.constant(True))
    value = ops.parameter([-1, 5, 3, 1], np.float32)
    result = ops.result(ops.multiply(value, ops.constant(np.float32(1.5))))
    goes_on = ops.result(ops.constant(True))
    loop.set_function(ov.Model([result, goes_on], [value], "body"))
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(value, data.output(0), result.output(0))
    return loop.get_iter_value(result.output(0), -1)


BEHIND: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda value: ops.softmax(value, 1),
    "convolution": lambda value: ops.convolution(
        value, ops.constant(_numbers(7, 5, 2, 1)), [1, 1], [1, 0], [1, 0], [2, 2]
    ),
    "pooling": lambda value: ops.avg_pool(value, [1, 1], [0, 0], [0, 0], [2, 1], exclude_pad=False),
}


@pytest.mark.parametrize("kind", BEHIND)
def test_successors_of_a_loop_find_its_result_when_memory_moves(
    shared_core: Core, reference: ov.Core, kind: str
) -> None:
    """The memory moves when another part of the model gets another shape and the loop keeps its own."""
    beside, data = ops.parameter([-1, 8, 5, 3, 1], np.float32), ops.parameter([-1, 5, 3, 1], np.float32)
    weights = ops.constant(_numbers(7, 8, 1, 1, 1))
    outputs = [
        ops.convolution(beside, weights, [1, 1, 2], [0, 0, 0], [0, 0, 0], [1, 1, 1]),
        BEHIND[kind](_iterated(data)),
    ]
    model = ov.Model(outputs, [beside, data], "loop")
    small, large = ([_numbers(count, 8, 5, 3, 1), _numbers(2, 5, 3, 1)] for count in (2, 9))
    expected = reference.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(large)
    compiled = shared_core.compile_model(model, "NPU")
    for inputs in (small, small, large):
        results = compiled.create_infer_request().infer(inputs)
    for index in range(2):
        np.testing.assert_array_equal(results[index], expected[index])
