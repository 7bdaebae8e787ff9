"""The values of read-only properties of a device and of the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import openvino as ov
from openvino._pyopenvino.properties.device import PCIInfo
from openvino.properties.device import Type as DeviceType

from softnpu.driver import Context, Device, Driver
from softnpu.plugin.openvino_runtime import cpu_capabilities
from softnpu.plugin.properties.config import ModelProperties
from softnpu.plugin.properties.table import PROPERTIES, Access, Level, at

_PRECISIONS = ("FP32", "BF16", "FP16", "INT8")


class DeviceView(msgspec.Struct, frozen=True):
    """The source of property values: a device, and the properties in effect on it.

    `context` connects to the device, on first call.
    """

    device: Device
    driver: Driver
    properties: ModelProperties
    context: Callable[[], Context]


def read(view: DeviceView, name: str) -> Any:
    """Return the value of a property at core level."""
    if PROPERTIES[name].access is Access.WO:
        return None
    reader = READERS.get(name)
    return view.properties[name] if reader is None else reader(view)


def access_of(level: Level) -> dict[str, str]:
    """Return SUPPORTED_PROPERTIES."""
    return {record.name: record.access_at(level).value for record in at(level)}


def _names(access: Access) -> list[str]:
    return [name for name, text in access_of(Level.CORE).items() if text == access.value]


def _ids(view: DeviceView) -> list[str]:
    devices = view.driver.devices
    return [devices[0].info.platform] if len(devices) == 1 else [str(device.info.index) for device in devices]


def _gops(view: DeviceView) -> dict[Any, float]:
    """Return GOPS, computed like the real plugin's from the device's properties."""
    device = view.device.get_properties()
    gops = device.core_clock_rate / 1e9 * device.num_slices * device.physical_eu_simd_width
    return {ov.Type.f32: 0.0, ov.Type.u8: gops, ov.Type.i8: gops, ov.Type.f16: gops / 2}


def _compiler_version(view: DeviceView) -> int:
    from softnpu.driver import GraphExtension

    major, minor = GraphExtension(view.device).device_get_graph_properties().compiler_version
    return major << 16 | minor


def _pci(view: DeviceView) -> Any:
    address = view.device.pci_get_properties_ext()
    return PCIInfo(address.domain, address.bus, address.device, address.function)


def _allocated(view: DeviceView) -> int:
    context = view.context()
    return context.query_memory()[1] + context.query_graph_memory()


def _capabilities() -> set[str]:
    return {*cpu_capabilities(), "FP16"}  # the device's own, on every host


READERS: dict[str, Callable[[DeviceView], Any]] = {
    "SUPPORTED_PROPERTIES": lambda _: access_of(Level.CORE),
    "SUPPORTED_METRICS": lambda _: _names(Access.RO),
    "SUPPORTED_CONFIG_KEYS": lambda _: _names(Access.RW),
    "NUM_STREAMS": lambda _: 1,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": lambda view: view.properties.optimal_requests(),
    "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda _: (1, 8, 1),
    "RANGE_FOR_STREAMS": lambda _: (1, 1),
    "AVAILABLE_DEVICES": _ids,
    "DEVICE_UUID": lambda view: view.device.get_properties().uuid.hex(),
    "DEVICE_ARCHITECTURE": lambda view: view.device.info.platform,
    "FULL_DEVICE_NAME": lambda view: view.device.get_properties().name,
    "DEVICE_TYPE": lambda _: DeviceType.INTEGRATED,
    "DEVICE_GOPS": _gops,
    "DEVICE_PCI_INFO": _pci,
    "NPU_DEVICE_ALLOC_MEM_SIZE": _allocated,
    "NPU_DEVICE_TOTAL_MEM_SIZE": lambda view: view.context().query_memory()[0],
    "NPU_DRIVER_VERSION": lambda view: view.driver.get_properties().driver_version,
    "NPU_COMPILER_VERSION": _compiler_version,
    "OPTIMIZATION_CAPABILITIES": lambda _: [name for name in _PRECISIONS if name in _capabilities()],
    "EXECUTION_DEVICES": lambda view: view.properties.device_name,
}
