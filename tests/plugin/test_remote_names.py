"""Remote tensors over memory with a POSIX name: another program's, and published for one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import posix_ipc
import pytest

import softnpu.plugin as npu
from softnpu.plugin.errors import DeviceLostError, InputError, PropertyError
from tests.support.models import image, on_cpu

SIZE = 5000


@pytest.fixture
def camera(posix_name: str) -> Iterator[mmap.mmap]:
    """Memory that another program has published under `posix_name`."""
    memory = posix_ipc.SharedMemory(posix_name, posix_ipc.O_CREX, size=SIZE)
    with mmap.mmap(memory.fd, SIZE) as mapping:
        os.close(memory.fd)
        yield mapping
    posix_ipc.unlink_shared_memory(posix_name)


def test_a_request_reads_and_writes_memory_of_other_programs_in_place(
    core: npu.Core, camera: mmap.mmap, posix_name: str, digits: Path
) -> None:
    compiled = core.compile_model(digits, "NPU")
    context = compiled.get_context()
    picture = image()
    shared = {"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name}
    frame = context.create_tensor(ov.Type.f32, [1, 1, 8, 8], {**shared, "MEM_OFFSET": 64})
    result = context.create_tensor(ov.Type.f32, [1, 10], {"MEM_NAME": posix_name + "-result"})
    camera[64 : 64 + picture.nbytes] = picture.tobytes()
    request = compiled.create_infer_request()
    request.set_tensor("image", frame)
    request.set_tensor("probabilities", result)
    request.infer()
    expected = on_cpu(digits, picture)[0].tobytes()
    assert Path(f"/dev/shm{posix_name}-result").read_bytes() == expected
    assert compiled.staged_bytes == 0
    again = context.create_tensor(
        ov.Type.f32, [1, 10], {"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name + "-result"}
    )
    assert again.data.tobytes() == expected
    del result, request
    assert not Path(f"/dev/shm{posix_name}-result").exists(), "the name ends with the tensor"


@pytest.mark.usefixtures("camera")
def test_truncated_memory_is_device_lost_for_its_request_alone(
    core: npu.Core, posix_name: str, digits: Path
) -> None:
    compiled = core.compile_model(digits, "NPU")
    other = compiled.create_infer_request()
    shared = {"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name}
    frame = compiled.get_context().create_tensor(ov.Type.f32, [1, 1, 8, 8], shared)
    request = compiled.create_infer_request()
    request.set_tensor("image", frame)
    request.infer()
    os.truncate(f"/dev/shm{posix_name}", 100)
    with pytest.raises(DeviceLostError, match=f"/dev/shm{posix_name}: 100 bytes; expected 256"):
        request.infer()
    picture = image()
    assert np.array_equal(other.infer({"image": picture})["probabilities"], on_cpu(digits, picture)[0])
    os.truncate(f"/dev/shm{posix_name}", SIZE)


def test_a_missing_or_invalid_name_is_refused(core: npu.Core, camera: mmap.mmap, posix_name: str) -> None:
    del camera
    context = core.get_default_context("NPU")
    for properties, kind, text in (
        ({"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name + "-none"}, InputError, "No such file"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_NAME": "camera"}, PropertyError, "expected a POSIX name"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name, "MEM_OFFSET": 4900}, InputError, "5000 bytes"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name, "MEM_OFFSET": -1}, PropertyError, "value -1"),
        ({"MEM_TYPE": "SHARED_BUF", "MEM_NAME": posix_name, "MEM_HANDLE": 3}, PropertyError, "MEM_HANDLE"),
        ({"MEM_TYPE": "CPU_VA", "MEM_HANDLE": 64, "MEM_NAME": posix_name}, PropertyError, "MEM_NAME"),
        ({"MEM_OFFSET": 3}, PropertyError, "without MEM_TYPE"),
        ({"MEM_NAME": posix_name}, InputError, "File exists"),
    ):
        with pytest.raises(kind, match=text):
            context.create_tensor(ov.Type.f32, [1, 1, 8, 8], properties)
