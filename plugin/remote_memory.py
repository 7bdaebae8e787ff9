"""Where the memory of a remote tensor comes from: allocated, shared, part of other memory, a file."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Allocation, Context
from softnpu.driver.memory import view_of
from softnpu.plugin.errors import InputError, NpuError, PropertyError, translated
from softnpu.plugin.remote_properties import MemType, RemoteProperties, TensorType


@dataclass(frozen=True)
class RemoteMemory:
    """The bytes of a remote tensor.

    They can be exported if they are an exportable `allocation`, or have come with a `descriptor`, which
    becomes the tensor's.
    """

    raw: npt.NDArray[np.uint8]
    allocation: Allocation | None = None
    descriptor: int | None = None


@dataclass(frozen=True)
class TensorLayout:
    """Element type and shape of a tensor, and how many bytes that takes."""

    element_type: Any
    shape: Any
    byte_size: int


def layout_of(asked: str, element_type: Any, shape: Any) -> TensorLayout:
    """The layout of a tensor. Raises `InputError` for what has no fixed size."""
    try:
        kind = element_type if isinstance(element_type, ov.Type) else ov.Type(element_type)
    except (TypeError, RuntimeError):
        raise InputError(
            f"{asked}: element type {element_type!r}; expected an openvino.Type such as f32"
        ) from None
    if kind.is_dynamic() or kind == ov.Type.string:
        raise InputError(f"{asked}: element type {kind.to_string()} has no size; expected a type of numbers")
    try:
        dimensions = ov.Shape(list(shape) if isinstance(shape, Iterable) else shape)
    except (TypeError, RuntimeError):
        raise InputError(
            f"{asked}: shape {shape!r}; expected numbers from 0 on, such as [1, 3, 224, 224]"
        ) from None
    return TensorLayout(kind, dimensions, (math.prod(dimensions) * kind.bitwidth + 7) // 8)


def obtain(asked: str, context: Context, chosen: RemoteProperties, size: int) -> RemoteMemory:
    """`size` bytes of memory as `chosen` says, which must have a MEM_TYPE.

    Raises `InputError` for memory that cannot be used, `NpuError` when there is none.
    """
    assert chosen.mem_type is not None
    return _SOURCES[chosen.mem_type](asked, context, chosen, size)


def _allocated(asked: str, context: Context, chosen: RemoteProperties, size: int) -> RemoteMemory:
    del chosen
    with translated(asked, NpuError):
        allocation = context.alloc_host(max(1, size), export=True)
    return RemoteMemory(allocation.view(np.uint8, (size,)), allocation)


def _imported(asked: str, context: Context, chosen: RemoteProperties, size: int) -> RemoteMemory:
    handle = chosen.mem_handle
    assert handle is not None
    asked = f"{asked}, MEM_HANDLE {handle}"
    try:
        # a copy: the caller may close or reuse the number in another thread
        descriptor = os.dup(handle)
    except (OSError, OverflowError):
        raise InputError(
            f"{asked}: no open descriptor; expected the one that export() of a remote tensor has returned, "
            "not closed yet"
        ) from None
    try:
        _check_descriptor(asked, os.fstat(descriptor), size)
        with translated(asked, InputError):
            allocation = context.import_memory(descriptor)
        return RemoteMemory(allocation.view(np.uint8, (size,)), allocation, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _check_descriptor(asked: str, found: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            f"{asked}: a descriptor of something that is no memory; expected one from export() of a remote "
            "tensor"
        )
    if found.st_size < size:
        raise InputError(
            f"{asked}: memory of {found.st_size} bytes; expected at least {size}, as type and shape need"
        )


def _at_address(asked: str, context: Context, chosen: RemoteProperties, size: int) -> RemoteMemory:
    address = chosen.mem_handle
    assert address is not None
    with translated(f"{asked}, MEM_TYPE CPU_VA", InputError):
        block, offset = context.memory.resolve("create_tensor", address)
    left = block.size - offset
    if left < size:
        raise InputError(
            f"{asked}, MEM_TYPE CPU_VA: {left} bytes of device memory at {address:#x}; expected at least "
            f"{size}, as type and shape need"
        )
    return RemoteMemory(view_of(block)[offset : offset + size])


def _from_file(asked: str, context: Context, chosen: RemoteProperties, size: int) -> RemoteMemory:
    """A copy of part of a file, as the real plugin makes one where its driver cannot map files."""
    assert chosen.file is not None
    path, offset = chosen.file.path, chosen.file.offset_in_bytes
    asked = f"{asked}, file {path}"
    if chosen.tensor_type not in (None, TensorType.INPUT):
        raise PropertyError(f"{asked}: TENSOR_TYPE {chosen.tensor_type}; expected INPUT for MMAPED_FILE")
    try:
        with open(path, "rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            if left < size:
                raise InputError(
                    f"{asked}: {left} bytes from byte {offset} on; expected at least {size}, as type and "
                    "shape need"
                )
            memory = _allocated(asked, context, chosen, size)
            file.seek(offset)
            file.readinto(memory.raw.data)
    except OSError as failure:
        raise InputError(f"{asked}: {failure.strerror}; expected a file that can be read") from failure
    return memory


_Source = Callable[[str, Context, RemoteProperties, int], RemoteMemory]
_SOURCES: dict[MemType, _Source] = {
    MemType.L0_INTERNAL_BUF: _allocated,
    MemType.SHARED_BUF: _imported,
    MemType.CPU_VA: _at_address,
    MemType.MMAPED_FILE: _from_file,
}
