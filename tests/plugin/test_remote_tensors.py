"""Remote tensors and contexts: created as in OpenVINO, used in place by requests, alive as long as needed."""

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


pytestmark = pytest.mark.quick


# ------------------------------------------------------------ as in openvino


def test_openvinos_methods_exist_with_their_arguments() -> None:
    for own, theirs in ((RemoteContext, ov.RemoteContext), (RemoteTensor, ov.RemoteTensor)):
        missing = [name for name in dir(theirs) if not name.startswith("_") and not hasattr(own, name)]
        assert missing == []


def test_every_way_to_a_context_gives_the_same_device_and_level_zero_context(
    shared_core: Core, compiled: CompiledModel, two_by_two: ov.Model
) -> None:
    own = compiled.get_context()
    ways = [
        shared_core.create_context("NPU", {}),
        shared_core.get_default_context("NPU"),
        own,
        shared_core.create_context("NPU", own.get_params()),
    ]
    assert [way.get_device_name() for way in ways] == ["NPU"] * 4
    assert {id(way.get_params()["L0_CONTEXT"]) for way in ways} == {id(compiled.context)}
    other = shared_core.compile_model(two_by_two, own, {"PERFORMANCE_HINT": "LATENCY"})
    assert other.get_property("EXECUTION_DEVICES") == "NPU"


def test_a_tensor_has_the_attributes_of_openvinos(context: RemoteContext) -> None:
    tensor = context.create_tensor(ov.Type.f16, ov.Shape([4, 5]), {})
    assert (tensor.get_element_type(), list(tensor.get_shape())) == (ov.Type.f16, [4, 5])
    assert tensor.get_device_name() == "NPU"
    assert not tensor.data.any()
    params = tensor.get_params()
    assert (params["MEM_TYPE"], params["TENSOR_TYPE"]) == ("L0_INTERNAL_BUF", "BINDED")
    assert params["MEM_HANDLE"] == tensor.data.ctypes.data
    for kind in (ov.Type.f32, ov.Type.bf16, ov.Type.u8, ov.Type.boolean, ov.Type.i64, ov.Type.u4):
        ours, theirs = context.create_tensor(kind, [4, 6]), ov.Tensor(kind, ov.Shape([4, 6]))
        assert (ours.element_type, ours.byte_size) == (kind, theirs.byte_size)


def test_properties_of_a_context_hold_for_its_tensors(shared_core: Core) -> None:
    context = shared_core.create_context("NPU", {"MEM_TYPE": "L0_INTERNAL_BUF", "TENSOR_TYPE": "OUTPUT"})
    for properties, kind in (({}, "OUTPUT"), ({"TENSOR_TYPE": "INPUT"}, "INPUT")):
        assert context.create_tensor(ov.Type.f32, [1], properties).get_params()["TENSOR_TYPE"] == kind


def test_copies_are_tensors_of_openvino_and_pickling_is_refused(context: RemoteContext) -> None:
    ours, other = (context.create_tensor(ov.Type.f32, SHAPE) for _ in range(2))
    theirs = ov.Tensor(ov.Type.f32, ov.Shape(SHAPE))
    ours.copy_from(ov.Tensor(LEFT))
    ours.copy_to(other)
    other.copy_to(theirs)
    twin = copy.deepcopy(ours)
    ours.data[:] = 0
    assert type(twin) is ov.Tensor
    assert np.array_equal(twin.data, LEFT)
    assert np.array_equal(theirs.data, LEFT)
    with pytest.raises(TypeError, match=r"remote tensor f32\[2, 3\] on NPU: .*go through multiprocessing"):
        pickle.dumps(ours)


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
    host = [context.create_host_tensor(ov.Type.f32, ov.Shape(SHAPE)) for _ in range(2)]
    assert type(host[0]) is ov.Tensor
    host[0].data[:], host[1].data[:] = LEFT, RIGHT
    for inputs in (host, {"left": host[0], 1: tensors["right"]}):
        assert np.array_equal(compiled(inputs)["total"], LEFT + RIGHT)
    assert compiled.staged_bytes == 0


def test_a_tensor_is_made_from_the_address_of_device_memory(
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


# ------------------------------------------------------------ lifetime


def test_memory_is_released_with_the_last_reference(daemon: Daemon, core: Core) -> None:
    before = core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    tensor = core.create_context("NPU", {}).create_tensor(ov.Type.u8, [1 << 20])
    assert core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") - before >= 1 << 20
    array = tensor.data
    del tensor
    array[:] = 1
    assert daemon.memory_used() >= 1 << 20
    del array
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")


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
