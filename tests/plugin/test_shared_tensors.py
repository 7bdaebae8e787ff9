"""Outputs that are inputs or alias each other: the CPU device's numbers, and an input's own bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset3
from openvino import opset13 as ops

from softnpu.plugin import Core
from tests.support.daemon import Daemon
from tests.support.shared_tensors import MODELS, Shape, direct, einsum, handed_on

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SHAPES = {
    "static": [2, 3],
    "bounded": [ov.Dimension(0, 6), ov.Dimension(1, 3)],
    "unbounded": [-1, -1],
    "empty": [0, 3],
    "scalar": [],
}
# one element each, so that the bytes of every type below are whole numbers of elements
EXACT_TYPES = (
    "boolean", "i8", "u8", "i16", "u16", "f16", "bf16", "i32", "u32", "f32", "i64", "u64", "f64"
)  # fmt: skip
# a NaN with a payload, minus zero, more than 32 and more than 53 bits, the largest and the smallest
PATTERNS = np.array(
    [0x7FF0DEAD7F80BEEF, 0x8000000080008000, 2**40 + 1, 2**53 + 1, 0xFFFFFFFFFFFFFFFF, 0x3FB999999999999A],
    np.uint64,
).view(np.uint8)


def sizes(shape: Shape) -> list[list[int]]:
    """Shapes to infer with: the shape itself, or some that it allows."""
    if ov.PartialShape(list(shape)).is_static:
        return [list(shape)] * 2
    return [[2, 3], [5, 3], [1, 3], [2, 3]]


def outputs(compiled: Any, inputs: list[npt.NDArray[np.float32]]) -> list[npt.NDArray[Any]]:
    """Outputs of one inference of a new request."""
    return [np.array(value) for value in compiled.create_infer_request().infer(inputs).to_tuple()]


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_without_a_tensor_of_their_own(shared_core: Core, reference: ov.Core, kind: str) -> None:
    for form, shape in SHAPES.items():
        if kind == "bystanders" and form in {"empty", "scalar"}:
            continue  # TopK and Gather need an element in a dimension
        model = MODELS[kind](shape)
        expected = reference.compile_model(model, "CPU", F32)
        request = shared_core.compile_model(model, "NPU").create_infer_request()
        generator = np.random.default_rng(1)
        for size in sizes(shape):
            inputs = [generator.random(size, np.float32) for _ in model.inputs]
            found = [np.array(value) for value in request.infer(inputs).to_tuple()]
            for index, (ours, theirs) in enumerate(zip(found, outputs(expected, inputs), strict=True)):
                assert ours.shape == theirs.shape, f"{form}, output {index}"
                assert ours.tobytes() == theirs.tobytes(), f"{form}, output {index}: {ours}, not {theirs}"


@pytest.mark.parametrize("shape", [[-1], [48], [0]], ids=["dynamic", "static", "empty"])
def test_an_input_that_is_an_output_keeps_its_bits(shared_core: Core, shape: list[int]) -> None:
    for element_type in EXACT_TYPES:
        kind = getattr(ov.Type, element_type)
        data = PATTERNS % 2 if element_type == "boolean" else PATTERNS
        count = shape[0] if shape[0] >= 0 else len(data) // kind.size
        data = np.resize(data, count * kind.size)
        request = shared_core.compile_model(handed_on(kind, shape), "NPU").create_infer_request()
        request.set_input_tensor(0, ov.Tensor(data, ov.Shape([count]), kind))
        request.infer()
        output = request.get_output_tensor(0)
        assert list(output.shape) == [count], element_type
        assert output.data.tobytes() == data.tobytes(), element_type
        assert request.get_output_tensor(1).data.tolist() == [count]


def test_a_tensor_set_for_an_output_does_not_replace_the_inputs(shared_core: Core) -> None:
    # an input that is also an output gets the output's tensor names
    x = ops.parameter([4], np.float32, name="x")
    x.output(0).set_names({"x"})
    model = ov.Model([ops.result(x), ops.result(ops.exp(x))], [x], "shared")
    compiled = shared_core.compile_model(model, "NPU")
    data = np.array([1, 2, 3, 4], np.float32)
    ways: dict[str, Callable[[Any, ov.Tensor], None]] = {
        "index": lambda request, output: request.set_output_tensor(0, output),
        "indices": lambda request, output: request.set_output_tensors({0: output}),
        "own port": lambda request, output: request.set_tensor(compiled.outputs[0], output),
        "port of the model": lambda request, output: request.set_tensor(model.outputs[0], output),
    }
    for name, set_output in ways.items():
        request = compiled.create_infer_request()
        given, output = ov.Tensor(data), ov.Tensor(np.full(4, 7, np.float32))
        request.set_tensor("x", given)
        set_output(request, output)
        request.infer()
        assert output.data.tolist() == given.data.tolist() == data.tolist(), name
        np.testing.assert_array_equal(request.get_tensor(compiled.outputs[0]).data, data)
        np.testing.assert_allclose(request.get_output_tensor(1).data, np.exp(data), rtol=1e-6)


def test_tensors_set_for_aliased_outputs(shared_core: Core) -> None:
    x = ops.parameter([4], np.float32, name="x")
    same = ops.exp(x)
    same.output(0).set_names({"y"})
    model = ov.Model([ops.result(same) for _ in range(3)], [x], "shared")
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    tensors = [ov.Tensor(np.full(4, 7, np.float32)) for _ in model.outputs]
    for port, tensor in zip(model.outputs, tensors, strict=True):
        request.set_tensor(port, tensor)
    request.infer([np.zeros(4, np.float32)])
    assert [tensor.data.tolist() for tensor in tensors] == [[1, 1, 1, 1]] * 3


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [(direct([8, 8]), [8, 8], 2 * 256), (einsum([8, -1]), [8, 8], 3 * 256)],
    ids=["static", "dynamic"],
)
def test_a_copied_output_is_counted(
    shared_core: Core, shared_daemon: Daemon, model: ov.Model, size: list[int], expected: int
) -> None:
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    request.set_input_tensor(0, ov.Tensor(np.zeros(size, np.float32)))
    request.infer()
    before = shared_daemon.engine().staged_bytes
    request.infer()
    assert shared_daemon.engine().staged_bytes - before == expected


def test_a_result_of_another_shape_than_declared_is_refused(shared_core: Core) -> None:
    # the CPU device returns the boxes it chose, fewer or more than opset 3 declares
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.01], [5, 5, 6, 6]]], np.float32)
    node = opset3.non_max_suppression(
        opset3.parameter([1, 3, 4], np.float32, name="boxes"),
        opset3.constant(np.array([[[0.9, 0.8, 0.7]]], np.float32)),
        opset3.constant(np.int64(3)),
        opset3.constant(np.float32(0.5)),
        opset3.constant(np.float32(0.1)),
    )
    model = ov.Model([node], [node.input_value(0).get_node()], "boxes")
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    with pytest.raises(RuntimeError, match=r"shape \[2, 3\]; expected shape \[3, 3\]"):
        request.infer([boxes])


@pytest.mark.parametrize("form", ["static", "bounded", "unbounded"])
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
def test_requests_in_flight_keep_their_inputs(shared_core: Core, form: str, beside: int) -> None:
    x = ops.parameter(ov.PartialShape(list(SHAPES[form])), ov.Type.f32)
    unchanged = ops.convert(x, "f32")
    model = ov.Model([ops.result(unchanged), ops.result(unchanged), *[ops.exp(x)] * beside], [x], "twice")
    compiled = shared_core.compile_model(model, "NPU")
    requests = [compiled.create_infer_request() for _ in range(3)]
    generator = np.random.default_rng(1)
    for size in sizes(SHAPES[form]):
        inputs = [generator.random(size, np.float32) for _ in requests]
        for request, data in zip(requests, inputs, strict=True):
            request.start_async([data])
        for request, data in zip(requests, inputs, strict=True):
            request.wait()
            np.testing.assert_array_equal(request.get_input_tensor().data, data)
            for index in range(2):
                np.testing.assert_array_equal(request.get_output_tensor(index).data, data)
