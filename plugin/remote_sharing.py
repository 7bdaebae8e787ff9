"""Remote tensors through `multiprocessing`: the descriptor travels, the other process maps the same memory.

Both start methods that begin with a fresh process work (spawn, forkserver), and so do queues and pipes.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from typing import Any

import msgspec
import openvino as ov

from softnpu.plugin.devices import devices_at
from softnpu.plugin.remote_context import RemoteContext
from softnpu.plugin.remote_properties import MemType
from softnpu.plugin.remote_tensor import RemoteTensor


class Parcel(msgspec.Struct, frozen=True):
    """What a tensor is apart from its memory. `socket` is that of the daemon, None for the default one."""

    socket: str | None
    device: int
    element_type: str
    shape: tuple[int, ...]
    tensor_type: str


def _send(tensor: RemoteTensor) -> tuple[Any, ...]:
    # a process that is about to start inherits the very descriptor, so it has to be one that stays open
    descriptor = DupFd(tensor.descriptor())
    context = tensor.context
    socket = context.devices.socket
    parcel = Parcel(
        None if socket is None else str(socket),
        context.index,
        tensor.element_type.get_type_name(),
        tuple(tensor.shape),
        tensor.get_params()["TENSOR_TYPE"].value,
    )
    return _receive, (parcel, descriptor)


def _receive(parcel: Parcel, descriptor: Any) -> RemoteTensor:
    fd = descriptor.detach()
    try:
        devices = devices_at(None if parcel.socket is None else Path(parcel.socket))
        return RemoteContext(devices, parcel.device).create_tensor(
            getattr(ov.Type, parcel.element_type),
            list(parcel.shape),
            {"MEM_TYPE": MemType.SHARED_BUF, "MEM_HANDLE": fd, "TENSOR_TYPE": parcel.tensor_type},
        )
    finally:
        os.close(fd)


def register() -> None:
    """Teaches `multiprocessing` to send remote tensors."""
    ForkingPickler.register(RemoteTensor, _send)
