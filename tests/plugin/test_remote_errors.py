"""Invalid remote tensors: every error has the object, the value, the expectation, and the next step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver import Driver
from softnpu.plugin import Core, DeviceLostError, InputError, NpuError, PropertyError, RemoteContext
from tests.conftest import StartDaemon
from tests.support.cases import case
from tests.support.daemon import Daemon

F32 = ov.Type.f32


@pytest.fixture
def context(shared_core: Core) -> RemoteContext:
    return shared_core.get_default_context("NPU")


@pytest.fixture
def two_devices(start_daemon: StartDaemon) -> Iterator[Core]:
    daemon = start_daemon(devices=("4000", "3720"))
    core = Core(daemon.socket)
    yield core
    core.unload_plugin()


# ------------------------------------------------------------ properties


def test_a_wrong_property_is_refused(context: RemoteContext) -> None:
    cases: list[tuple[Any, str]] = [
        ({"MEM_TIPE": "SHARED_BUF"}, "property MEM_TIPE: unknown; expected MEM_TYPE"),
        ({"MEM_TYPE": "USM"}, "property MEM_TYPE: value 'USM'; expected one of L0_INTERNAL_BUF, SHARED_BUF"),
        (
            {"MEM_TYPE": "L0_INTERNAL_BUF", "TENSOR_TYPE": "BOTH"},
            "TENSOR_TYPE: value 'BOTH'; expected one of INPUT",
        ),
        ({"MEM_TYPE": "SHARED_BUF"}, "MEM_TYPE SHARED_BUF: no MEM_HANDLE; expected a descriptor"),
        ({"MEM_HANDLE": 3}, "property MEM_HANDLE: given without MEM_TYPE; expected one of"),
        ({"TENSOR_TYPE": "INPUT"}, "property TENSOR_TYPE: given without MEM_TYPE"),
        ({"MEM_TYPE": "L0_INTERNAL_BUF", "MEM_HANDLE": 3}, "MEM_HANDLE: given with MEM_TYPE L0_INTERNAL_BUF"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": "3"}, "MEM_HANDLE: value '3'; expected a descriptor"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": -1}, "MEM_HANDLE: value -1; expected a descriptor"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": True}, "MEM_HANDLE: value True; expected a descriptor"),
        ({"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": 3}, "FILE_DESCRIPTOR: value 3; expected a path"),
        (
            {"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": ("x", -4)},
            "expected a path, or a path and an offset",
        ),
        (
            {"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": "x", "TENSOR_TYPE": "OUTPUT"},
            "expected INPUT for MMAPED_FILE",
        ),
        ({"L0_CONTEXT": 1}, "L0_CONTEXT: a int; expected the softnpu.driver.Context"),
        (["MEM_TYPE"], "properties are a list; expected a mapping"),
    ]
    for properties, message in cases:
        with case(properties, message), pytest.raises(PropertyError, match=message):
            context.create_tensor(F32, [4], properties)


def test_a_context_refuses_wrong_properties_and_foreign_level_zero_contexts(shared_core: Core) -> None:
    with pytest.raises(PropertyError, match=r"context on NPU, property COLOUR: unknown"):
        shared_core.create_context("NPU", {"COLOUR": 1})
    with pytest.raises(PropertyError, match=r"device 'GPU': not an NPU"):
        shared_core.create_context("GPU", {})
    with Driver.open(shared_core.driver._connection.name, autostart=False) as driver:
        own = driver.devices[0].create_context()
        with pytest.raises(
            PropertyError, match=r"L0_CONTEXT: a context that the plugin has not made.*SHARED_BUF"
        ):
            shared_core.create_context("NPU", {"L0_CONTEXT": own})


# ------------------------------------------------------------ type and shape


def test_a_tensor_without_a_size_is_refused(context: RemoteContext) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ("float?", [4], "element type 'float\\?'; expected an openvino.Type"),
        (ov.Type.dynamic, [4], "element type dynamic has no size"),
        (ov.Type.string, [4], "element type string has no size"),
        (F32, [4, -1], "shape \\[4, -1\\]; expected numbers from 0 on"),
        (F32, "four", "shape 'four'; expected numbers"),
        (F32, None, "shape None; expected numbers"),
    ]
    for kind, shape, message in cases:
        with case(kind, shape, message):
            for create in (context.create_tensor, context.create_host_tensor):
                with pytest.raises(InputError, match=message):
                    create(kind, shape)


def test_more_memory_than_the_device_has_is_refused(context: RemoteContext) -> None:
    with pytest.raises(NpuError, match=r"remote tensor on NPU: .*expected"):
        context.create_tensor(F32, [1 << 44])


# ------------------------------------------------------------ handles


def _shared(context: RemoteContext, handle: int, size: int = 16) -> None:
    context.create_tensor(ov.Type.u8, [size], {"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": handle})


def test_a_wrong_descriptor_is_refused(context: RemoteContext, private_dir: Path) -> None:
    tensor = context.create_tensor(ov.Type.u8, [4096])
    descriptor = tensor.export()
    with pytest.raises(InputError, match="memory of 4096 bytes; expected at least 4097, as type and shape"):
        _shared(context, descriptor, 4097)
    _shared(context, descriptor, 4096)
    os.close(descriptor)
    for number in (descriptor, tensor.get_params()["MEM_HANDLE"]):
        message = f"MEM_HANDLE {number}: no open descriptor; expected the one that export"
        with pytest.raises(InputError, match=message):
            _shared(context, number)
    (private_dir / "file").write_bytes(bytes(4096))
    with (
        open(private_dir / "file", "r+b") as file,
        pytest.raises(InputError, match=r"expected whole pages of an exportable allocation"),
    ):
        _shared(context, file.fileno())
    reader, writer = os.pipe()
    with pytest.raises(InputError, match=r"something that is no memory; expected one from export\(\)"):
        _shared(context, reader)
    os.close(reader)
    os.close(writer)


def test_memory_of_the_program_is_refused_with_the_reason(context: RemoteContext) -> None:
    array = np.zeros(16, np.float32)
    properties = {"MEM_TYPE": "CPU_VA", "MEM_HANDLE": array.ctypes.data}
    with pytest.raises(InputError, match=r"CPU_VA: .*not in memory of this context.*Copy the data"):
        context.create_tensor(F32, [16], properties)
    tensor = context.create_tensor(F32, [16])
    inside = {"MEM_TYPE": "CPU_VA", "MEM_HANDLE": tensor.get_params()["MEM_HANDLE"] + 4}
    with pytest.raises(InputError, match=r"60 bytes of device memory at .*expected at least 64"):
        context.create_tensor(F32, [16], inside)
    part = context.create_tensor(F32, [4], inside)
    with pytest.raises(InputError, match=r"export: with MEM_TYPE CPU_VA it is part of other memory.*Exp"):
        part.export()


def test_a_file_of_the_wrong_size_is_refused(context: RemoteContext, private_dir: Path) -> None:
    path = private_dir / "short"
    path.write_bytes(bytes(10))
    properties = {"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": (path, 4)}
    with pytest.raises(InputError, match=r"short: 6 bytes from byte 4 on; expected at least 16"):
        context.create_tensor(F32, [4], properties)
    with pytest.raises(InputError, match=r"none: No such file or directory; expected a file"):
        context.create_tensor(F32, [4], {"MEM_TYPE": "MMAPED_FILE", "FILE_DESCRIPTOR": private_dir / "none"})


# ------------------------------------------------------------ in requests


def test_a_tensor_that_does_not_fit_its_port_is_refused(shared_core: Core, two_by_two: ov.Model) -> None:
    compiled = shared_core.compile_model(two_by_two, "NPU")
    request, context = compiled.create_infer_request(), compiled.get_context()
    with pytest.raises(InputError, match=r"input 'left': f32\[3, 2\] given; expected f32\[2, ?3\]"):
        request.set_tensor("left", context.create_tensor(F32, [3, 2]))
    with pytest.raises(InputError, match=r"input 'left': f16\[2, 3\] given"):
        request.set_tensor("left", context.create_tensor(ov.Type.f16, [2, 3]))
    properties = {"MEM_TYPE": "L0_INTERNAL_BUF", "TENSOR_TYPE": "INPUT"}
    tensor = context.create_tensor(F32, [2, 3], properties)
    request.set_tensor("left", tensor)
    with pytest.raises(InputError, match=r"output .*TENSOR_TYPE INPUT; expected OUTPUT or BINDED"):
        request.set_tensor("total", tensor)


def test_memory_of_another_device_is_refused_and_can_be_shared(
    two_devices: Core, two_by_two: ov.Model
) -> None:
    compiled = two_devices.compile_model(two_by_two, "NPU.1")
    assert compiled.get_context().get_device_name() == "NPU.1"
    other = two_devices.create_context("NPU.0", {}).create_tensor(F32, [2, 3])
    assert other.get_device_name() == "NPU.0"
    other.data[:] = 3
    request = compiled.create_infer_request()
    with pytest.raises(
        InputError, match=r"memory of another device; expected memory of device 1.*SHARED_BUF"
    ):
        request.set_tensor("left", other)
    descriptor = other.export()
    shared = compiled.get_context().create_tensor(
        F32, [2, 3], {"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": descriptor}
    )
    os.close(descriptor)
    assert (request.infer([shared, shared])["total"] == 6).all()
    assert compiled.staged_bytes == 0


def test_a_context_of_another_daemon_is_refused(
    start_daemon: StartDaemon, shared_core: Core, two_by_two: ov.Model
) -> None:
    other = Core(start_daemon().socket)
    with pytest.raises(PropertyError, match=r"compile_model: a context of the daemon at .*create_context"):
        shared_core.compile_model(two_by_two, other.get_default_context("NPU"))
    other.unload_plugin()


# ------------------------------------------------------------ after the session ends


def test_everything_fails_by_name_after_the_session_ends(
    daemon: Daemon, core: Core, two_by_two: ov.Model
) -> None:
    assert daemon.alive
    compiled = core.compile_model(two_by_two, "NPU")
    context = compiled.get_context()
    tensor = context.create_tensor(F32, [2, 3])
    tensor.data[:] = 7
    core.unload_plugin()
    ended = r"its session has ended \(unload_plugin, or the daemon is gone\); expected"
    for use in (
        lambda: context.create_tensor(F32, [1]),
        lambda: context.create_host_tensor(F32, [1]),
        tensor.export,
        compiled.get_context,
        lambda: core.compile_model(two_by_two, context),
    ):
        with pytest.raises(DeviceLostError, match=ended):
            use()
    assert (tensor.data == 7).all(), "what the program can see stays"
    fresh = core.compile_model(two_by_two, "NPU").create_infer_request()
    with pytest.raises(DeviceLostError, match=rf"remote tensor f32\[2, 3\] on NPU, input 'left': {ended}"):
        fresh.set_tensor("left", tensor)
    tensor = core.get_default_context("NPU").create_tensor(F32, [2, 3])
    daemon.kill()
    with pytest.raises(DeviceLostError, match=r"remote tensor .*export: its session has ended"):
        tensor.export()
