"""Remote tensors and contexts: made as in OpenVINO, used in place by requests, alive as long as needed."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core, MemType, RemoteContext, RemoteTensor, TensorType
from softnpu.plugin.compiled_model import CompiledModel
from tests.support.daemon import Daemon
from tests.support.leaks import descriptors_of
from tests.support.waiting import wait_until

SHAPE = [2, 3]
LEFT = np.arange(6, dtype=np.float32).reshape(SHAPE)
RIGHT = np.full(SHAPE, 0.5, np.float32)


@pytest.fixture
def compiled(shared_core: Core, two_by_two: ov.Model) -> CompiledModel:
    return shared_core.compile_model(two_by_two, "NPU")


@pytest.fixture
def context(compiled: CompiledModel) -> RemoteContext:
    return compiled.get_context()


# ------------------------------------------------------------ as in openvino


def test_the_methods_of_openvino_are_there_with_their_arguments() -> None:
    for own, theirs in ((RemoteContext, ov.RemoteContext), (RemoteTensor, ov.RemoteTensor)):
        missing = [name for name in dir(theirs) if not name.startswith("_") and not hasattr(own, name)]
        assert missing == []


def test_every_way_to_a_context_ends_at_the_same_device_and_level_zero_context(
    shared_core: Core, compiled: CompiledModel
) -> None:
    ways = [
        shared_core.create_context("NPU", {}),
        shared_core.get_default_context("NPU"),
        compiled.get_context(),
    ]
    assert [way.get_device_name() for way in ways] == ["NPU"] * 3
    assert {id(way.get_params()["L0_CONTEXT"]) for way in ways} == {id(compiled.context)}


def test_a_context_can_be_made_of_the_level_zero_context_of_another(
    shared_core: Core, context: RemoteContext
) -> None:
    assert shared_core.create_context("NPU", context.get_params()).get_device_name() == "NPU"


def test_a_model_is_compiled_for_the_device_of_a_context(
    shared_core: Core, two_by_two: ov.Model, context: RemoteContext
) -> None:
    compiled = shared_core.compile_model(two_by_two, context, {"PERFORMANCE_HINT": "LATENCY"})
    assert compiled.get_property("EXECUTION_DEVICES") == "NPU"


def test_a_tensor_tells_what_it_is(context: RemoteContext) -> None:
    tensor = context.create_tensor(ov.Type.f16, ov.Shape([4, 5]), {})
    assert (tensor.get_element_type(), list(tensor.get_shape()), tensor.get_byte_size()) == (
        ov.Type.f16,
        [4, 5],
        40,
    )
    assert tensor.get_device_name() == "NPU"
    params = tensor.get_params()
    assert (params["MEM_TYPE"], params["TENSOR_TYPE"]) == ("L0_INTERNAL_BUF", "BINDED")
    assert params["MEM_HANDLE"] == tensor.data.ctypes.data


def test_memory_begins_as_zeros_and_numpy_sees_it(context: RemoteContext) -> None:
    tensor = context.create_tensor(ov.Type.i32, [3])
    assert tensor.data.tolist() == [0, 0, 0]
    tensor.data[:] = [1, 2, 3]
    assert tensor.data.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "kind", [ov.Type.f32, ov.Type.bf16, ov.Type.u8, ov.Type.boolean, ov.Type.i64, ov.Type.u4]
)
def test_tensors_of_every_kind_of_element(context: RemoteContext, kind: ov.Type) -> None:
    ours, theirs = context.create_tensor(kind, [4, 6]), ov.Tensor(kind, ov.Shape([4, 6]))
    assert (ours.element_type, ours.byte_size) == (kind, theirs.byte_size)


def test_tensors_are_copied_to_and_from_tensors_of_both_kinds(context: RemoteContext) -> None:
    ours, other, theirs = (
        context.create_tensor(ov.Type.f32, SHAPE),
        context.create_tensor(ov.Type.f32, SHAPE),
        ov.Tensor(ov.Type.f32, ov.Shape(SHAPE)),
    )
    ours.copy_from(ov.Tensor(LEFT))
    ours.copy_to(other)
    other.copy_to(theirs)
    assert np.array_equal(theirs.data, LEFT)


# ------------------------------------------------------------ in requests


def test_a_request_uses_remote_tensors_in_place(compiled: CompiledModel, context: RemoteContext) -> None:
    tensors = {name: context.create_tensor(ov.Type.f32, SHAPE) for name in ("left", "right", "total")}
    request = compiled.create_infer_request()
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)
        assert request.get_tensor(name) is tensor
    for factor in (1, 10):
        tensors["left"].data[:] = LEFT * factor
        tensors["right"].data[:] = RIGHT
        request.infer()
        assert np.array_equal(tensors["total"].data, LEFT * factor + RIGHT)
    assert compiled.staged_bytes == 0


def test_infer_takes_remote_tensors_as_inputs(compiled: CompiledModel, context: RemoteContext) -> None:
    left, right = (context.create_tensor(ov.Type.f32, SHAPE) for _ in range(2))
    left.data[:], right.data[:] = LEFT, RIGHT
    results = compiled({"left": left, 1: right})
    assert np.array_equal(results["total"], LEFT + RIGHT)
    assert compiled.staged_bytes == 0


def test_host_tensors_of_a_context_are_used_in_place(compiled: CompiledModel, context: RemoteContext) -> None:
    left, right = (context.create_host_tensor(ov.Type.f32, ov.Shape(SHAPE)) for _ in range(2))
    assert type(left) is ov.Tensor
    left.data[:], right.data[:] = LEFT, RIGHT
    assert np.array_equal(compiled([left, right])["total"], LEFT + RIGHT)
    assert compiled.staged_bytes == 0


def test_openvino_itself_takes_them_too(
    context: RemoteContext, reference: ov.Core, two_by_two: ov.Model
) -> None:
    left, right = (context.create_tensor(ov.Type.f32, SHAPE) for _ in range(2))
    left.data[:], right.data[:] = LEFT, RIGHT
    assert np.array_equal(reference.compile_model(two_by_two, "CPU")([left, right])["total"], LEFT + RIGHT)


def test_part_of_device_memory_is_a_tensor_by_its_address(
    compiled: CompiledModel, context: RemoteContext
) -> None:
    whole = context.create_tensor(ov.Type.f32, [2, *SHAPE])
    whole.data[1] = LEFT
    address = whole.get_params()["MEM_HANDLE"] + LEFT.nbytes
    part = context.create_tensor(ov.Type.f32, SHAPE, {"MEM_TYPE": MemType.CPU_VA, "MEM_HANDLE": address})
    assert np.array_equal(compiled([part, part])["total"], LEFT * 2)
    assert compiled.staged_bytes == 0


def test_a_tensor_is_filled_from_a_file(context: RemoteContext, private_dir: Path) -> None:
    path = private_dir / "numbers.bin"
    path.write_bytes(b"1234" + LEFT.tobytes())
    properties = {"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": (path, 4)}
    tensor = context.create_tensor(ov.Type.f32, SHAPE, properties)
    assert np.array_equal(tensor.data, LEFT)
    assert tensor.get_params()["TENSOR_TYPE"] is TensorType.INPUT


def test_properties_of_a_context_hold_for_its_tensors(shared_core: Core) -> None:
    context = shared_core.create_context("NPU", {"MEM_TYPE": "L0_INTERNAL_BUF", "TENSOR_TYPE": "OUTPUT"})
    assert context.create_tensor(ov.Type.f32, [1]).get_params()["TENSOR_TYPE"] == "OUTPUT"
    given = context.create_tensor(ov.Type.f32, [1], {"TENSOR_TYPE": "INPUT"})
    assert given.get_params()["TENSOR_TYPE"] == "INPUT"


# ------------------------------------------------------------ lifetime


def test_memory_is_given_back_with_the_last_reference(daemon: Daemon, core: Core) -> None:
    before = core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    tensor = core.create_context("NPU", {}).create_tensor(ov.Type.u8, [1 << 20])
    assert core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") - before >= 1 << 20
    array = tensor.data
    del tensor
    array[:] = 1
    assert daemon.memory_used() >= 1 << 20
    del array
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")


def test_a_request_keeps_the_memory_of_its_tensors(daemon: Daemon, core: Core, two_by_two: ov.Model) -> None:
    assert daemon.alive
    compiled = core.compile_model(two_by_two, "NPU")
    request = compiled.create_infer_request()
    left = compiled.get_context().create_tensor(ov.Type.f32, SHAPE)
    left.data[:] = LEFT
    request.set_tensor("left", left)
    request.get_tensor("right").data[:] = RIGHT
    del left
    gc.collect()
    assert np.array_equal(request.infer()["total"], LEFT + RIGHT)


def test_an_inference_in_flight_keeps_the_memory(daemon: Daemon, core: Core) -> None:
    assert daemon.alive
    rows = 1500
    data = ops.parameter([rows, rows], ov.Type.f32, name="data")
    data.output(0).set_names({"data"})
    model = ov.Model([ops.result(ops.matmul(data, data, False, False))], [data], "square")
    compiled = core.compile_model(model, "NPU")
    context, request = compiled.get_context(), compiled.create_infer_request()
    outcome = context.create_tensor(ov.Type.f32, [rows, rows])
    request.set_output_tensor(outcome)
    given = context.create_tensor(ov.Type.f32, [rows, rows])
    given.data[:] = 0
    np.fill_diagonal(given.data, 2)
    request.start_async({"data": given})
    del given, context
    gc.collect()
    request.wait()
    assert np.array_equal(np.diag(outcome.data), np.full(rows, 4, np.float32))


def test_no_descriptor_is_left_open(daemon: Daemon, core: Core) -> None:
    context = core.create_context("NPU", {})
    tensors = [context.create_tensor(ov.Type.f32, [16]) for _ in range(50)]
    ours, theirs = descriptors_of(os.getpid()), daemon.fd_count
    for tensor in tensors:
        tensor.descriptor()
    assert descriptors_of(os.getpid()) >= ours + 50
    del tensor, tensors
    gc.collect()
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")
    assert descriptors_of(os.getpid()) <= ours - 50
    # compiler workers may come and go meanwhile
    assert daemon.fd_count <= theirs - 40


# ------------------------------------------------------------ copies of the object


def test_a_tensor_is_not_pickled_without_its_descriptor(context: RemoteContext) -> None:
    tensor = context.create_tensor(ov.Type.f32, SHAPE)
    with pytest.raises(
        TypeError, match=r"remote tensor f32\[2, 3\] on NPU: .*expected it to go through multipro"
    ):
        pickle.dumps(tensor)


def test_a_deep_copy_is_an_ordinary_tensor_as_in_openvino(context: RemoteContext) -> None:
    tensor = context.create_tensor(ov.Type.f32, SHAPE)
    tensor.data[:] = LEFT
    twin = copy.deepcopy(tensor)
    tensor.data[:] = 0
    assert type(twin) is ov.Tensor
    assert np.array_equal(twin.data, LEFT)
