"""`openvino.RemoteContext` for the emulated NPU: creates tensors in device memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.devices import Devices, devices_of
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError, translated
from softnpu.plugin.remote.remote_memory import layout_of, obtain
from softnpu.plugin.remote.remote_properties import complete, parse_remote
from softnpu.plugin.remote.remote_tensor import RemoteTensor


class RemoteContext:
    """Created by `Core.create_context`, `Core.get_default_context` and `CompiledModel.get_context`.

    All contexts on a device share one Level Zero context, as in OpenVINO; they differ in the default
    properties of their tensors.
    """

    def __init__(self, devices: Devices, index: int, properties: Mapping[str, Any] | None = None) -> None:
        self._devices = devices
        self._index = index
        self._name = devices.names()[index]
        self._context = devices.context(index)
        self._pid = os.getpid()
        self._defaults = parse_remote(f"context on {self._name}", properties)
        l0_context = self._defaults.l0_context
        if l0_context is not None and l0_context is not self._context:
            raise PropertyError(
                f"context on {self._name}, property L0_CONTEXT: a context that the plugin has not made; "
                "expected its own, as get_params() of a remote context has it. Share the memory of another "
                "context by descriptor: MEM_TYPE=SHARED_BUF"
            )

    # ------------------------------------------------------------ as in openvino

    def get_device_name(self) -> str:
        """Return the device's full name: `NPU`, or `NPU.1` where there are several."""
        return self._name

    def get_params(self) -> dict[str, Any]:
        """Return L0_CONTEXT: the driver's `Context`, for programs that use Level Zero objects."""
        return {"L0_CONTEXT": self._context}

    def create_tensor(
        self, type: Any, shape: Any, properties: Mapping[str, Any] | None = None
    ) -> RemoteTensor:
        """Create a tensor in device memory, new (MEM_TYPE L0_INTERNAL_BUF, the default) or existing.

        `properties`: MEM_TYPE, MEM_HANDLE, MEM_NAME, MEM_OFFSET, TENSOR_TYPE, FILE_DESCRIPTOR; those of the
        context are defaults. For SHARED_BUF, MEM_HANDLE is a descriptor from `RemoteTensor.export`, which the
        caller keeps, or MEM_NAME the POSIX name of another program's memory. L0_INTERNAL_BUF with a MEM_NAME
        publishes new memory under it, until the tensor or this process ends.
        Raises `PropertyError`, `InputError` for unsuitable memory, `NpuError` when there is none.
        """
        subject = f"remote tensor on {self._name}"
        self.check_alive(subject)
        layout = layout_of(subject, type, shape)
        merged = complete(subject, parse_remote(subject, properties).over(self._defaults))
        return RemoteTensor(self, layout, obtain(subject, self._context, merged, layout.byte_size), merged)

    def create_host_tensor(self, type: Any, shape: Any) -> ov.Tensor:
        """Create an `openvino.Tensor` in device memory: requests use it in place.

        Raises as `create_tensor`.
        """
        subject = f"host tensor on {self._name}"
        self.check_alive(subject)
        layout = layout_of(subject, type, shape)
        with translated(subject, NpuError):
            memory = self._context.alloc_host(max(1, layout.byte_size))
        return ov.Tensor(memory.view(np.uint8, (layout.byte_size,)), layout.shape, layout.element_type)

    # ------------------------------------------------------------ beyond openvino

    @property
    def driver_context(self) -> Context:
        """The underlying driver context."""
        return self._context

    @property
    def devices(self) -> Devices:
        """The devices that this process uses through the same daemon."""
        return self._devices

    @property
    def index(self) -> int:
        """The number of the device."""
        return self._index

    def check_alive(self, subject: str) -> None:
        """Raise `DeviceLostError` when the session has ended, or belongs to the parent of a fork."""
        if self._pid != os.getpid():
            raise DeviceLostError(
                f"{subject}: made by process {self._pid}, used in its forked child {os.getpid()}; expected a "
                "context of this process. Start the process with the method 'spawn': it gets the tensor as "
                "an argument"
            )
        if self._context.destroyed or self._context.lost:
            raise DeviceLostError(
                f"{subject}: its session has ended (unload_plugin, or the daemon is gone); expected a "
                "context of the session that is open. Make a new one with create_context"
            )

    def __repr__(self) -> str:
        return f"<RemoteContext: {self._name}>"


def remote_context_of(context: Context, subject: str) -> RemoteContext:
    """Return the remote context of a driver context. Raises `DeviceLostError` when its session has ended."""
    devices = devices_of(context)
    if devices is None:
        raise DeviceLostError(
            f"{subject}: its session has ended (unload_plugin, or the daemon is gone); expected a model of "
            "the session that is open. Compile it again"
        )
    return RemoteContext(devices, context.device.info.index)
