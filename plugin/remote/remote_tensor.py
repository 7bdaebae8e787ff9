"""`openvino.RemoteTensor` for the emulated NPU: device memory that other processes can share."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.devices import Devices
from softnpu.plugin.errors import InputError, NpuError, translated
from softnpu.plugin.remote.remote_memory import RemoteMemory, TensorLayout
from softnpu.plugin.remote.remote_properties import RemoteProperties, TensorType


class TensorContext(Protocol):
    """What a remote tensor uses of its `RemoteContext`."""

    def get_device_name(self) -> str: ...

    def check_alive(self, subject: str) -> None: ...

    @property
    def driver_context(self) -> Context: ...

    @property
    def devices(self) -> Devices: ...

    @property
    def index(self) -> int: ...


class RemoteTensor(ov.Tensor):  # type: ignore[misc]
    """Created by `RemoteContext.create_tensor`.

    Device memory is host-visible, so this is an `openvino.Tensor` too: `data` is a view of the memory, and
    `copy_to` and `copy_from` take tensors of both kinds. The memory lives while anything refers to it: this
    object, an array from `data`, an infer request, an inference in flight, another process.
    """

    def __init__(
        self, context: TensorContext, layout: TensorLayout, memory: RemoteMemory, properties: RemoteProperties
    ) -> None:
        super().__init__(memory.raw, layout.shape, layout.element_type)
        self._context = context
        self._address = int(memory.raw.ctypes.data)
        self._mem_type = properties.mem_type
        self._tensor_type = properties.tensor_type
        self._allocation = memory.allocation
        self._descriptor: int | None = None
        self._offset = memory.offset
        if memory.descriptor is not None:
            self._keep(memory.descriptor)

    # ------------------------------------------------------------ as in openvino

    def get_device_name(self) -> str:
        """Return the device of the memory."""
        return self._context.get_device_name()

    def get_params(self) -> dict[str, Any]:
        """Return MEM_TYPE, TENSOR_TYPE, and MEM_HANDLE: the address, as for a Level Zero allocation.

        Another process needs a descriptor instead of the address: see `export`.
        """
        return {"MEM_TYPE": self._mem_type, "MEM_HANDLE": self._address, "TENSOR_TYPE": self._tensor_type}

    # ------------------------------------------------------------ beyond openvino

    @property
    def context(self) -> TensorContext:
        """The `RemoteContext` that created it."""
        return self._context

    def export(self) -> int:
        """Return a descriptor of the memory, for `create_tensor` with MEM_TYPE=SHARED_BUF in any process.

        The descriptor covers the whole memory: pass this tensor's `offset` as MEM_OFFSET. The caller closes
        the descriptor.
        Raises `InputError` for memory without a descriptor (CPU_VA), `DeviceLostError` when the tensor's
        session has ended.
        """
        return os.dup(self.descriptor())

    def descriptor(self) -> int:
        """Return the descriptor that the tensor keeps open. Raises as `export`."""
        self.check_alive("export")
        if self._descriptor is None and self._allocation is not None:
            with translated(f"{self._described()}, export", NpuError):
                self._keep(self._context.driver_context.export_memory(self._allocation))
        if self._descriptor is None:
            raise InputError(
                f"{self._described()}, export: with MEM_TYPE {self._mem_type} it is part of other memory; "
                "expected a tensor with memory of its own. Export the tensor that has it"
            )
        return self._descriptor

    @property
    def offset(self) -> int:
        """The start of the tensor in the memory of its descriptor."""
        return self._offset

    def check_alive(self, subject: str) -> None:
        """Raise `DeviceLostError` when the session of the memory has ended."""
        self._context.check_alive(f"{self._described()}, {subject}")

    def check_usable(self, context: Context, port: str, as_input: bool) -> None:
        """Raise `InputError` unless a request on `context` can use the memory in place for `port`.

        The memory is never copied: programs use remote tensors to avoid copies.
        """
        self.check_alive(port)
        if context is not self._context.driver_context:
            raise InputError(
                f"{port}: {self._described()} given, memory of another device; expected memory of device "
                f"{context.device.info.index}, where the model is. Share it: in the context of the model, "
                "create_tensor with MEM_TYPE=SHARED_BUF and MEM_HANDLE=tensor.export()"
            )
        expected = TensorType.INPUT if as_input else TensorType.OUTPUT
        if self._tensor_type not in (expected, TensorType.BINDED):
            raise InputError(
                f"{port}: {self._described()} has TENSOR_TYPE {self._tensor_type}; expected {expected} or "
                f"{TensorType.BINDED}"
            )

    def __repr__(self) -> str:
        return f"<RemoteTensor: shape{self.shape} type: {self.element_type.to_string()} {self._mem_type}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{self._described()}: pickled alone; expected it to go through multiprocessing (arguments of a "
            "Process, a Queue, a Pipe), where its descriptor travels along"
        )

    def _keep(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, _close, descriptor, os.getpid()).atexit = False

    def _described(self) -> str:
        return f"remote tensor {self.element_type.to_string()}{list(self.shape)} on {self.get_device_name()}"


def _close(descriptor: int, pid: int) -> None:
    # in a forked child the number may refer to something else by now
    if os.getpid() == pid:
        os.close(descriptor)
