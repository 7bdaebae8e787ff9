"""The memory of a remote tensor: allocated, shared, part of other memory, or read from a file."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Allocation, Context
from softnpu.driver.block import view_of
from softnpu.driver.memory import locate
from softnpu.driver.shared_memory import is_foreign, open_name
from softnpu.plugin.errors import InputError, NpuError, PropertyError, translated
from softnpu.plugin.remote.remote_properties import MemType, RemoteProperties, TensorType


class RemoteMemory(msgspec.Struct, frozen=True):
    """The bytes of a remote tensor.

    An exportable `allocation`, or a `descriptor` owned by the tensor, makes them shareable; they begin at
    byte `offset` of it.
    """

    raw: npt.NDArray[np.uint8]
    allocation: Allocation | None = None
    descriptor: int | None = None
    offset: int = 0


class TensorLayout(msgspec.Struct, frozen=True):
    """Element type, shape and size of a tensor."""

    element_type: Any
    shape: Any
    byte_size: int


def layout_of(subject: str, element_type: Any, shape: Any) -> TensorLayout:
    """Return the layout of a tensor. Raises `InputError` for a type or shape without a fixed size."""
    try:
        kind = element_type if isinstance(element_type, ov.Type) else ov.Type(element_type)
    except (TypeError, RuntimeError):
        raise InputError(
            f"{subject}: element type {element_type!r}; expected an openvino.Type such as f32"
        ) from None
    if kind.is_dynamic() or kind == ov.Type.string:
        raise InputError(
            f"{subject}: element type {kind.to_string()} has no size; expected a type of numbers"
        )
    try:
        dimensions = ov.Shape(list(shape) if isinstance(shape, Iterable) else shape)
    except (TypeError, RuntimeError):
        raise InputError(
            f"{subject}: shape {shape!r}; expected numbers from 0 on, such as [1, 3, 224, 224]"
        ) from None
    return TensorLayout(kind, dimensions, (math.prod(dimensions) * kind.bitwidth + 7) // 8)


def obtain(subject: str, context: Context, properties: RemoteProperties, size: int) -> RemoteMemory:
    """Obtain `size` bytes of memory of the MEM_TYPE in `properties`.

    Raises `InputError` for unsuitable memory, `NpuError` when there is none.
    """
    assert properties.mem_type is not None
    return _SOURCES[properties.mem_type](subject, context, properties, size)


def _allocated(subject: str, context: Context, properties: RemoteProperties, size: int) -> RemoteMemory:
    if properties.mem_name is not None:
        return _published(subject, context, properties.mem_name, size)
    with translated(subject, NpuError):
        allocation = context.alloc_host(max(1, size), export=True)
    return RemoteMemory(allocation.view(np.uint8, (size,)), allocation)


def _published(subject: str, context: Context, name: str, size: int) -> RemoteMemory:
    """Allocate memory under a name of this process, which ends with the tensor."""
    with translated(f"{subject}, MEM_NAME {name}", InputError):
        allocation = context.publish_shared_memory(name, max(1, size))
        descriptor = open_name("create_tensor", name)
    return RemoteMemory(allocation.view(np.uint8, (size,)), allocation, descriptor)


def _imported(subject: str, context: Context, properties: RemoteProperties, size: int) -> RemoteMemory:
    offset = properties.mem_offset or 0
    if properties.mem_name is not None:
        return _named(subject, context, properties.mem_name, offset, size)
    handle = properties.mem_handle
    assert handle is not None
    subject = f"{subject}, MEM_HANDLE {handle}"
    try:
        # a duplicate, because another thread of the caller may close the number
        descriptor = os.dup(handle)
    except (OSError, OverflowError):
        raise InputError(
            f"{subject}: no open descriptor; expected the one that export() of a remote tensor has returned, "
            "not closed yet"
        ) from None
    return _shared(subject, context, descriptor, offset, size)


def _named(subject: str, context: Context, name: str, offset: int, size: int) -> RemoteMemory:
    """Open memory published by another program."""
    subject = f"{subject}, MEM_NAME {name}"
    with translated(subject, InputError):
        descriptor = open_name("create_tensor", name)
    return _shared(subject, context, descriptor, offset, size)


def _shared(subject: str, context: Context, descriptor: int, offset: int, size: int) -> RemoteMemory:
    """Import the memory of a descriptor, taking ownership."""
    try:
        _check_descriptor(subject, os.fstat(descriptor), offset + size)
        with translated(subject, InputError):
            if is_foreign(descriptor) or offset:
                allocation = context.import_memory(descriptor, offset=offset, size=max(1, size))
            else:
                allocation = context.import_memory(descriptor)
        return RemoteMemory(allocation.view(np.uint8, (size,)), allocation, descriptor, offset)
    except BaseException:
        os.close(descriptor)
        raise


def _check_descriptor(subject: str, status: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            f"{subject}: a descriptor of something that is no memory; expected one from export() of a remote "
            "tensor"
        )
    if status.st_size < size:
        raise InputError(
            f"{subject}: memory of {status.st_size} bytes; expected at least {size}, as type and shape need"
        )


def _at_address(subject: str, context: Context, properties: RemoteProperties, size: int) -> RemoteMemory:
    address = properties.mem_handle
    assert address is not None
    with translated(f"{subject}, MEM_TYPE CPU_VA", InputError):
        block, offset = locate(context, "create_tensor", address)
    left = block.size - offset
    if left < size:
        raise InputError(
            f"{subject}, MEM_TYPE CPU_VA: {left} bytes of device memory at {address:#x}; expected at least "
            f"{size}, as type and shape need"
        )
    return RemoteMemory(view_of(block)[offset : offset + size])


def _from_file(subject: str, context: Context, properties: RemoteProperties, size: int) -> RemoteMemory:
    """Copy part of a file. The real plugin also copies where its driver cannot map files."""
    assert properties.file is not None
    path, offset = properties.file.path, properties.file.offset_in_bytes
    subject = f"{subject}, file {path}"
    if properties.tensor_type not in (None, TensorType.INPUT):
        raise PropertyError(
            f"{subject}: TENSOR_TYPE {properties.tensor_type}; expected INPUT for MMAPED_FILE"
        )
    try:
        with open(path, "rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            if left < size:
                raise InputError(
                    f"{subject}: {left} bytes from byte {offset} on; expected at least {size}, as type and "
                    "shape need"
                )
            memory = _allocated(subject, context, properties, size)
            file.seek(offset)
            file.readinto(memory.raw.data)
    except OSError as failure:
        raise InputError(f"{subject}: {failure.strerror}; expected a file that can be read") from failure
    return memory


_Source = Callable[[str, Context, RemoteProperties, int], RemoteMemory]
_SOURCES: dict[MemType, _Source] = {
    MemType.L0_INTERNAL_BUF: _allocated,
    MemType.SHARED_BUF: _imported,
    MemType.CPU_VA: _at_address,
    MemType.MMAPED_FILE: _from_file,
}
