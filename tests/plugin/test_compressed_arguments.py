"""Inputs and outputs of compressed weight types: several elements per byte, or 8-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import CompileError, Core, InputError

TYPES = ("i4", "u4", "u2", "nf4", "f8e4m3", "f8e5m2", "f8e8m0")
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def _model(kind: str, shape: list[int]) -> ov.Model:
    """The values as f32, the same reshaped, the input itself, and a converted f32 input."""
    packed = ov.op.Parameter(getattr(ov.Type, kind), ov.PartialShape(shape))
    other = ops.parameter(shape, np.float32)
    results = [ops.convert(packed, "f32"), ops.unsqueeze(packed, ops.constant([0])), packed]
    return ov.Model([*results, ops.convert(other, kind)], [packed, other], kind)


def _results(core: Any, device: str, kind: str, config: dict[str, str]) -> list[bytes]:
    request = core.compile_model(_model(kind, [3, 5]), device, config).create_infer_request()
    inputs = request.input_tensors
    inputs[0].data.reshape(-1).view(np.uint8)[:] = np.arange(7, 7 + inputs[0].byte_size)
    inputs[1].data[:] = np.linspace(0, 3, 15, dtype=np.float32).reshape(3, 5)
    request.infer()
    return [_bits(tensor) for tensor in request.output_tensors]


def _bits(tensor: Any) -> bytes:
    """The bits of all elements. Nobody writes the padding behind the last one in its byte."""
    data = tensor.data.reshape(-1).view(np.uint8)
    count = int(np.prod(tuple(tensor.shape))) * tensor.element_type.bitwidth
    return bytes(np.unpackbits(data, bitorder="little")[:count])


@pytest.mark.parametrize("kind", TYPES)
def test_arguments_of_compressed_types_have_the_bits_of_the_cpu_device(shared_core: Core, kind: str) -> None:
    assert _results(shared_core, "NPU", kind, {}) == _results(ov.Core(), "CPU", kind, F32)


@pytest.mark.parametrize("kind", ["i4", "f8e4m3"])
def test_host_tensors_are_copied_and_device_tensors_are_not(shared_core: Core, kind: str) -> None:
    element = getattr(ov.Type, kind)
    compiled = shared_core.compile_model(_model(kind, [3, 5]), "NPU")
    request = compiled.create_infer_request()
    own = request.get_input_tensor(0)
    raw = np.arange(1, 1 + own.byte_size, dtype=np.uint8)
    request.set_input_tensor(0, ov.Tensor(raw, ov.Shape([3, 5]), element))
    request.infer()
    assert bytes(request.get_output_tensor(2).data.reshape(-1).view(np.uint8)) == bytes(raw)
    assert compiled.staged_bytes >= own.byte_size


def test_an_array_for_packed_elements_is_refused(shared_core: Core) -> None:
    compiled = shared_core.compile_model(_model("i4", [3, 5]), "NPU")
    with pytest.raises(InputError, match=r"expected an openvino\.Tensor of i4"):
        compiled([np.zeros((3, 5), np.int8), np.zeros((3, 5), np.float32)])


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        ("u1", [8], "element type u1; expected one of boolean"),
        ("string", [8], "element type string; expected one of boolean"),
        ("f4e2m1", [8], "element type f4e2m1; expected one of boolean"),
        ("i4", [-1], "element type i4 with dynamic dimensions; expected one of boolean"),
    ],
)
def test_other_types_are_refused_before_anything_is_compiled(
    shared_core: Core, kind: str, shape: list[int], reason: str
) -> None:
    packed = ov.op.Parameter(getattr(ov.Type, kind), ov.PartialShape(shape))
    model = ov.Model([ops.unsqueeze(packed, ops.constant([0]))], [packed], kind)
    with pytest.raises(CompileError, match=reason):
        shared_core.compile_model(model, "NPU")


def test_a_batch_whose_samples_share_bytes_is_not_split(shared_core: Core) -> None:
    packed = ov.op.Parameter(ov.Type.u4, ov.PartialShape([3, 5]))
    packed.layout = ov.Layout("NC")
    model = ov.Model([ops.convert(packed, "f32")], [packed], "packed")
    assert shared_core.compile_model(model, "NPU").get_property("NPU_BATCH_MODE") == "COMPILER"
    with pytest.raises(CompileError, match="samples of u4 share bytes"):
        shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "PLUGIN"})


def test_a_state_of_packed_elements_is_refused_by_its_name(shared_core: Core) -> None:
    value = ops.constant(np.zeros(8, np.uint8))
    read = ops.read_value(ops.convert(value, "u4"), "cache", ov.Type.u4, [8])
    data = ops.parameter([8], np.uint8)
    new = ops.convert(ops.add(ops.convert(read, "u8"), data), "u4")
    result = ops.result(ops.convert(new, "u8"))
    model = ov.Model([result], [ops.assign(new, "cache")], [data], "state")
    with pytest.raises(CompileError, match=r"cache.*element type u4"):
        shared_core.compile_model(model, "NPU")
