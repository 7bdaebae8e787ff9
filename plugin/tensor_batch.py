"""A batch given as several tensors, one for each sample, by the rules of OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from softnpu.driver import Context, ZeError
from softnpu.driver.block import view_of
from softnpu.driver.memory import locate
from softnpu.plugin.errors import InputError
from softnpu.plugin.signature import PortSpec


def whole_shape(name: str, port: PortSpec, tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of all samples together. Raises `InputError` if they are no batch of the port."""
    subject = f"{name}, a batch of {len(tensors)} tensors"
    layout = ov.Layout(port.layout)
    if not ov.layout_helpers.has_batch(layout):
        raise InputError(f"{subject}: the layout is '{port.layout}'; expected one with N, the batch")
    first = tensors[0]
    shape, kind = tuple(first.shape), first.element_type
    axis = ov.layout_helpers.batch_idx(layout)
    if (axis if axis >= 0 else axis + len(shape)) != 0:
        raise InputError(f"{subject}: layout '{port.layout}'; expected the batch N as the first dimension")
    for at, tensor in enumerate(tensors):
        if not tuple(tensor.shape)[:1] == (1,):
            raise InputError(f"{subject}: tensor {at} has shape {list(tensor.shape)}; expected one sample")
        if tuple(tensor.shape) != shape or tensor.element_type != kind:
            found = f"{tensor.element_type.to_string()}{list(tensor.shape)}"
            raise InputError(f"{subject}: tensor {at} is {found}; expected {kind.to_string()}{list(shape)}")
    batch = port.partial_shape[0]
    if batch.is_static and batch.get_length() != len(tensors):
        raise InputError(f"{subject}: for shape {port.partial_shape}; expected {batch.get_length()} tensors")
    return (len(tensors), *shape[1:])


def adjacent(context: Context, tensors: Sequence[Any]) -> Any:
    """Return the memory of tensors that follow each other in one device allocation; None for others."""
    try:
        block, offset = locate(context, "set_tensors", tensors[0].data)
    except ZeError:
        return None
    size = int(tensors[0].byte_size)
    first = int(tensors[0].data.ctypes.data)
    places = [int(tensor.data.ctypes.data) - first for tensor in tensors]
    if places != [at * size for at in range(len(tensors))] or block.size - offset < len(tensors) * size:
        return None
    return view_of(block)[offset : offset + len(tensors) * size]
