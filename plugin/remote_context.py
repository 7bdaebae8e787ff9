"""`openvino.RemoteContext` for the emulated NPU: makes tensors in device memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.devices import Devices, devices_of
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError, translated
from softnpu.plugin.remote_memory import layout_of, obtain
from softnpu.plugin.remote_properties import complete, parse_remote
from softnpu.plugin.remote_tensor import RemoteTensor


class RemoteContext:
    """Made by `Core.create_context`, `Core.get_default_context` and `CompiledModel.get_context`.

    All contexts on a device share one Level Zero context, as in OpenVINO; they differ in the properties
    that their tensors have by default.
    """

    def __init__(self, devices: Devices, index: int, properties: Mapping[str, Any] | None = None) -> None:
        self._devices = devices
        self._index = index
        self._name = devices.names()[index]
        self._context = devices.context(index)
        self._pid = os.getpid()
        self._defaults = parse_remote(f"context on {self._name}", properties)
        asked = self._defaults.l0_context
        if asked is not None and asked is not self._context:
            raise PropertyError(
                f"context on {self._name}, property L0_CONTEXT: a context that the plugin has not made; "
                "expected its own, as get_params() of a remote context has it. Share the memory of another "
                "context by descriptor: MEM_TYPE=SHARED_BUF"
            )

    # ------------------------------------------------------------ as in openvino

    def get_device_name(self) -> str:
        """The device, by its full name: `NPU`, or `NPU.1` where there are several."""
        return self._name

    def get_params(self) -> dict[str, Any]:
        """L0_CONTEXT: the driver's `Context`, for programs that want Level Zero objects."""
        return {"L0_CONTEXT": self._context}

    def create_tensor(
        self, type: Any, shape: Any, properties: Mapping[str, Any] | None = None
    ) -> RemoteTensor:
        """A tensor in device memory, new (MEM_TYPE L0_INTERNAL_BUF, the default) or that of somebody else.

        `properties`: MEM_TYPE, MEM_HANDLE, TENSOR_TYPE, FILE_DESCRIPTOR; those of the context hold for what
        is not given. SHARED_BUF takes as MEM_HANDLE a descriptor from `RemoteTensor.export`, which stays
        the caller's. Raises `PropertyError`, `InputError` for what does not fit, `NpuError` when there is
        no memory.
        """
        asked = f"remote tensor on {self._name}"
        self.check_alive(asked)
        layout = layout_of(asked, type, shape)
        chosen = complete(asked, parse_remote(asked, properties).over(self._defaults))
        return RemoteTensor(self, layout, obtain(asked, self._context, chosen, layout.byte_size), chosen)

    def create_host_tensor(self, type: Any, shape: Any) -> ov.Tensor:
        """An `openvino.Tensor` in device memory: requests use it in place. Errors as in `create_tensor`."""
        asked = f"host tensor on {self._name}"
        self.check_alive(asked)
        layout = layout_of(asked, type, shape)
        with translated(asked, NpuError):
            memory = self._context.alloc_host(max(1, layout.byte_size))
        return ov.Tensor(memory.view(np.uint8, (layout.byte_size,)), layout.shape, layout.element_type)

    # ------------------------------------------------------------ beyond openvino

    @property
    def driver_context(self) -> Context:
        """The driver's context underneath."""
        return self._context

    @property
    def devices(self) -> Devices:
        """The devices that this process uses through the same daemon."""
        return self._devices

    @property
    def index(self) -> int:
        """The number of the device."""
        return self._index

    def check_alive(self, asked: str) -> None:
        """Raises `DeviceLostError` when its session has ended, or is that of the process that forked this."""
        if self._pid != os.getpid():
            raise DeviceLostError(
                f"{asked}: made by process {self._pid}, used in its forked child {os.getpid()}; expected a "
                "context of this process. Start the process with the method 'spawn': it gets the tensor as "
                "an argument"
            )
        if self._context.destroyed or self._context.connection.is_lost():
            raise DeviceLostError(
                f"{asked}: its session has ended (unload_plugin, or the daemon is gone); expected a context "
                "of the session that is open. Make a new one with create_context"
            )

    def __repr__(self) -> str:
        return f"<RemoteContext: {self._name}>"


def remote_context_of(context: Context, asked: str) -> RemoteContext:
    """The remote context on a driver's context of the plugin. Raises `DeviceLostError` after its session."""
    devices = devices_of(context)
    if devices is None:
        raise DeviceLostError(
            f"{asked}: its session has ended (unload_plugin, or the daemon is gone); expected a model of the "
            "session that is open. Compile it again"
        )
    return RemoteContext(devices, context.device.info.index)
