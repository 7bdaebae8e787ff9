"""Remote tensors through `multiprocessing`: the receiver of their descriptor maps the same memory.

The start methods spawn and forkserver work, and so do queues and pipes. Importing `multiprocessing` takes
longer than a small inference, so code that creates or receives remote tensors calls `register`.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from typing import Any

import msgspec
import openvino as ov

from softnpu.plugin.devices import devices_at
from softnpu.plugin.remote.remote_context import RemoteContext
from softnpu.plugin.remote.remote_properties import MemType
from softnpu.plugin.remote.remote_tensor import RemoteTensor


class TensorDescription(msgspec.Struct, frozen=True):
    """A tensor without its memory. `socket` is that of the daemon, None for the default one."""

    socket: str | None
    device: int
    element_type: str
    shape: tuple[int, ...]
    tensor_type: str
    offset: int


def _send(tensor: RemoteTensor) -> tuple[Any, ...]:
    # a process being started inherits this very descriptor, so it must stay open
    descriptor = DupFd(tensor.descriptor())
    context = tensor.context
    socket = context.devices.socket
    description = TensorDescription(
        None if socket is None else str(socket),
        context.index,
        tensor.element_type.get_type_name(),
        tuple(tensor.shape),
        tensor.get_params()["TENSOR_TYPE"].value,
        tensor.offset,
    )
    return _receive, (description, descriptor)


def _receive(description: TensorDescription, descriptor: Any) -> RemoteTensor:
    register()  # this process may send it on
    fd = descriptor.detach()
    try:
        devices = devices_at(None if description.socket is None else Path(description.socket))
        return RemoteContext(devices, description.device).create_tensor(
            getattr(ov.Type, description.element_type),
            list(description.shape),
            {
                "MEM_TYPE": MemType.SHARED_BUF,
                "MEM_HANDLE": fd,
                "MEM_OFFSET": description.offset,
                "TENSOR_TYPE": description.tensor_type,
            },
        )
    finally:
        os.close(fd)


def register() -> None:
    """Register remote tensors with `multiprocessing`; idempotent."""
    ForkingPickler.register(RemoteTensor, _send)
