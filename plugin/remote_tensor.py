"""`openvino.RemoteTensor` for the emulated NPU: device memory that other processes can use too."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.errors import InputError, NpuError, translated
from softnpu.plugin.remote_memory import RemoteMemory, TensorLayout
from softnpu.plugin.remote_properties import RemoteProperties, TensorType

if TYPE_CHECKING:
    from softnpu.plugin.remote_context import RemoteContext


class RemoteTensor(ov.Tensor):  # type: ignore[misc]
    """Made by `RemoteContext.create_tensor`.

    Device memory is host-visible here, so it is an `openvino.Tensor` too: `data` is a view of it, and
    `copy_to` and `copy_from` take tensors of both kinds. The memory lives as long as anybody refers to it:
    this object, an array from `data`, an infer request, an inference in flight, another process.
    """

    def __init__(
        self, context: RemoteContext, layout: TensorLayout, memory: RemoteMemory, chosen: RemoteProperties
    ) -> None:
        super().__init__(memory.raw, layout.shape, layout.element_type)
        self._context = context
        self._address = int(memory.raw.ctypes.data)
        self._mem_type = chosen.mem_type
        self._tensor_type = chosen.tensor_type
        self._allocation = memory.allocation
        self._descriptor: int | None = None
        if memory.descriptor is not None:
            self._keep(memory.descriptor)

    # ------------------------------------------------------------ as in openvino

    def get_device_name(self) -> str:
        """The device that the memory belongs to."""
        return self._context.get_device_name()

    def get_params(self) -> dict[str, Any]:
        """MEM_TYPE, TENSOR_TYPE, and MEM_HANDLE: the address, as for a Level Zero allocation.

        What another process needs is not the address but a descriptor: see `export`.
        """
        return {
            "MEM_TYPE": self._mem_type,
            "MEM_HANDLE": self._address,
            "TENSOR_TYPE": self._tensor_type,
        }

    # ------------------------------------------------------------ beyond openvino

    @property
    def context(self) -> RemoteContext:
        """The context that it was made in."""
        return self._context

    def export(self) -> int:
        """A descriptor of the memory, for `create_tensor` with MEM_TYPE=SHARED_BUF in any process.

        The caller closes it. Raises `InputError` for memory that has none (CPU_VA), `DeviceLostError` when
        the session of the tensor has ended.
        """
        return os.dup(self.descriptor())

    def descriptor(self) -> int:
        """The descriptor of the memory that the tensor itself keeps open. Raises as `export`."""
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

    def check_alive(self, asked: str) -> None:
        """Raises `DeviceLostError` when the session that the memory belongs to cannot be used any more."""
        self._context.check_alive(f"{self._described()}, {asked}")

    def check_usable(self, context: Context, port: str, as_input: bool) -> None:
        """Raises `InputError` unless a request on `context` can use the memory in place for `port`.

        Nothing is copied instead: who makes a remote tensor wants no copies.
        """
        self.check_alive(port)
        if context is not self._context.driver_context:
            raise InputError(
                f"{port}: {self._described()} given, memory of another device; expected memory of device "
                f"{context.device.info.index}, where the model is. Share it: in the context of the model, "
                "create_tensor with MEM_TYPE=SHARED_BUF and MEM_HANDLE=tensor.export()"
            )
        right = TensorType.INPUT if as_input else TensorType.OUTPUT
        if self._tensor_type not in (right, TensorType.BINDED):
            raise InputError(
                f"{port}: {self._described()} has TENSOR_TYPE {self._tensor_type}; expected {right} or "
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
    # in a forked child the number may mean something else by now
    if os.getpid() == pid:
        os.close(descriptor)
