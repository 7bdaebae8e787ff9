"""Driver, device, context, memory and sysman functions of the Python driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from softnpu.driver import Allocation, Context, Driver, Graph
from softnpu.driver.device import Device
from softnpu.driver.errors import error
from softnpu.driver.properties import EngineGroup
from softnpu.driver.sysman import Sysman
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ExternalMemory, InitDriverType
from tests.conformance.api.structures import (
    FOR_READING,
    AddressRange,
    AllocationProperties,
    DeviceMemDesc,
    DeviceProperties,
    DriverProperties,
    EngineActivity,
    ExtensionProperties,
    ExternalMemoryProperties,
    GlobalTimestamps,
    Handle,
    HostMemDesc,
    MemoryAccessProperties,
    MemoryProperties,
    PciProperties,
    Pointer,
    QueueGroupProperties,
    SysmanProperties,
)
from tests.conformance.call_tables import CALLS, Status
from tests.conformance.python_driver.results import (
    Keeper,
    answers,
    convert,
    creation,
    destruction,
    given,
    live,
    method,
    results,
    told,
)


class _Engine(NamedTuple):
    sysman: Sysman
    group: EngineGroup


class PythonCore(Keeper):
    """The part of the API without commands."""

    # ------------------------------------------------------------ driver

    @answers
    def ze_init_drivers(self, flags: int = InitDriverType.NPU, out: bool = True) -> Sequence[Handle]:
        given(out)
        if flags and not flags & InitDriverType.NPU:
            # opening a driver has no flags in Python: there is only this kind
            raise error("zeInitDrivers", ZeResult.ERROR_UNINITIALIZED, "drivers", found=f"flags {flags}")
        return [self._driver]

    ze_driver_get_api_version = told(Driver, Driver.get_api_version)

    ze_driver_get_properties = told(Driver, lambda this: convert(DriverProperties, this.get_properties()))

    ze_driver_get_ipc_properties = told(Driver, lambda this: this.get_ipc_properties().flags)

    ze_driver_get_extension_properties = told(
        Driver, lambda this: [convert(ExtensionProperties, e) for e in this.get_extension_properties()]
    )

    @answers
    def ze_driver_get_extension_function_address(
        self, driver: Handle, name: str | None, out: bool = True
    ) -> object:
        this = live(driver, Driver)
        given(name, out)
        assert name is not None
        return this.get_extension_function_address(name)

    ze_driver_get_last_error_description = told(Driver, Driver.get_last_error_description)

    @results
    def zex_disk_cache_set_size(self, driver: Handle, size: int) -> None:
        live(driver, Driver).set_disk_cache_size(size)

    @answers
    def zex_disk_cache_get_size(self, driver: Handle) -> int:
        return live(driver, Driver).get_disk_cache_size()

    @answers
    def zex_disk_cache_get_directory(self, driver: Handle, room: int = 4096) -> str:
        return live(driver, Driver).get_disk_cache_directory()[: room - 1]

    @results
    def zex_context_set_idle_pruning_timeout(self, context: Handle, timeout_ms: int) -> None:
        live(context, Context).set_idle_pruning_timeout(timeout_ms)

    @results
    def ze_context_set_properties(self, context: Handle, options: int) -> None:
        live(context, Context).set_properties(not options & 1)

    @results
    def ze_context_release_memory(self, context: Handle) -> None:
        live(context, Context).release_memory()

    # ------------------------------------------------------------ device

    ze_device_get = told(Driver, lambda this: list(this.devices))

    ze_device_get_sub_devices = told(Device, lambda this: list(this.get_sub_devices()))

    @answers
    def ze_device_get_properties(
        self, device: Handle, version: tuple[int, int] = (1, 0), out: bool = True
    ) -> DeviceProperties:
        this = live(device, Device)
        given(out)
        properties = convert(DeviceProperties, this.get_properties())
        if version >= (1, 2):
            # Python has one structure, with the older resolution
            cycles = round(1e9 / properties.timer_resolution)
            return properties._replace(timer_resolution=cycles)
        return properties

    ze_device_get_compute_properties = told(Device, lambda this: _numbers(this.get_compute_properties()))

    ze_device_get_image_properties = told(Device, lambda this: _numbers(this.get_image_properties()))

    ze_device_get_memory_properties = told(
        Device, lambda this: [convert(MemoryProperties, e) for e in this.get_memory_properties()]
    )

    ze_device_get_memory_access_properties = told(
        Device,
        lambda this: MemoryAccessProperties(*msgspec.structs.astuple(this.get_memory_access_properties())),
    )

    ze_device_get_external_memory_properties = told(
        Device, lambda this: _external(this.get_external_memory_properties())
    )

    @answers
    def ze_device_get_p2p_properties(self, device: Handle, peer: Handle, out: bool = True) -> int:
        this, other = live(device, Device), live(peer, Device)
        given(out)
        return this.get_p2p_properties(other).flags

    ze_device_get_command_queue_group_properties = told(
        Device,
        lambda this: [convert(QueueGroupProperties, e) for e in this.get_command_queue_group_properties()],
    )

    ze_device_get_status = method(Device, "get_status")

    ze_device_get_global_timestamps = told(
        Device, lambda this: GlobalTimestamps(*this.get_global_timestamps())
    )

    @answers
    def ze_device_get_runtime_requirements(self, device: Handle, graph: Handle, out: bool = True) -> str:
        this = live(device, Device)
        given(out)
        return this.get_runtime_requirements(live(graph, Graph))

    ze_device_get_runtime_requirements_key = told(Device, Device.get_runtime_requirements_key)

    ze_device_validate_runtime_requirements = told(
        Device, lambda this, text: int(this.validate_runtime_requirements(text))
    )

    ze_device_pci_get_properties_ext = told(
        Device, lambda this: convert(PciProperties, this.pci_get_properties_ext())
    )

    # ------------------------------------------------------------ context

    ze_context_create = creation([Driver], lambda driver, _: driver.devices[0].create_context())

    ze_context_destroy = destruction("zeContextDestroy", Context)
    ze_context_get_status = method(Context, "get_status")

    # ------------------------------------------------------------ memory

    @answers
    def ze_mem_alloc_host(
        self, context: Handle, desc: HostMemDesc | None, size: int, alignment: int = 0, out: bool = True
    ) -> Pointer:
        this = live(context, Context)
        given(desc, out)
        assert desc is not None
        if desc.import_fd is not None:
            return self._place(this.import_memory(desc.import_fd, "host"))
        if desc.system_memory is not None:
            read_only = bool(desc.flags & FOR_READING)
            return self._place(this.import_system_memory(*desc.system_memory, read_only=read_only))
        return self._place(this.alloc_host(size, alignment, _exportable(desc.export)))

    @answers
    def ze_mem_alloc_device(
        self,
        context: Handle,
        desc: DeviceMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Pointer:
        this = live(context, Context)
        live(device, Device)
        given(desc, out)
        assert desc is not None
        if desc.import_fd is not None:
            return self._place(this.import_memory(desc.import_fd, "device"))
        return self._place(this.alloc_device(size, alignment, _exportable(desc.export)))

    @answers
    def ze_mem_alloc_shared(
        self,
        context: Handle,
        device_desc: DeviceMemDesc | None,
        host_desc: HostMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Pointer:
        del device  # may be null: then the memory belongs to no device
        this = live(context, Context)
        given(device_desc, host_desc, out)
        assert device_desc is not None
        assert host_desc is not None
        for desc in (device_desc, host_desc):
            if desc.import_fd is not None:
                return self._place(this.import_memory(desc.import_fd, "shared"))
        export = _exportable(device_desc.export) or _exportable(host_desc.export)
        return self._place(this.alloc_shared(size, alignment, export))

    @results
    def ze_mem_free(self, context: Handle, pointer: Pointer) -> None:
        live(context, Context).free(pointer)
        self._kept.pop(pointer, None)

    @answers
    def ze_mem_get_alloc_properties(
        self, context: Handle, pointer: Pointer, out: bool = True, export: int = 0
    ) -> AllocationProperties:
        this = live(context, Context)
        given(out)
        properties = this.get_alloc_properties(pointer)
        fd = -1
        if _exportable(export):
            fd = this.export_memory(live(self._kept.get(pointer), Allocation))
        return AllocationProperties(properties.type, properties.id, properties.page_size, this.device, fd)

    @answers
    def ze_mem_get_address_range(self, context: Handle, pointer: Pointer) -> AddressRange:
        return AddressRange(*live(context, Context).get_address_range(pointer))

    def _place(self, allocation: Allocation) -> Pointer:
        self._kept[allocation.address] = allocation
        return allocation.address

    # ------------------------------------------------------------ sysman

    zes_device_get_properties = told(
        Device, lambda this: convert(SysmanProperties, this.sysman().get_properties())
    )

    @answers
    def zes_device_enum_engine_groups(self, device: Handle) -> Sequence[Handle]:
        sysman = live(device, Device).sysman()
        return [_Engine(sysman, group) for group in sysman.enum_engine_groups()]

    @answers
    def zes_engine_get_activity(self, engine: Handle) -> EngineActivity:
        this = live(engine, _Engine)
        stats = this.sysman.engine_get_activity(this.group)
        return EngineActivity(stats.active_time, stats.timestamp)

    # ------------------------------------------------------------ unsupported by the device

    def call_unsupported(self, function: str, handle: Handle) -> ZeResult:
        # Python has no methods for refused functions; the driver's own call table lists them
        if handle is None:
            return ZeResult.ERROR_INVALID_NULL_HANDLE
        status = {call.name: call.status for call in CALLS}[function]
        return ZeResult.ERROR_UNSUPPORTED_FEATURE if status is Status.REFUSED else ZeResult.ERROR_UNKNOWN


def _numbers(record: msgspec.Struct) -> list[int]:
    return [value for value in msgspec.structs.astuple(record) if isinstance(value, int)]


def _external(this: Any) -> ExternalMemoryProperties:
    return ExternalMemoryProperties(this.memory_allocation_import_types, this.memory_allocation_export_types)


def _exportable(export: int) -> bool:
    if export not in (0, ExternalMemory.DMA_BUF):
        # in Python the export descriptor is a flag of the call: other types are impossible
        raise error("zeMemAlloc", ZeResult.ERROR_INVALID_ENUMERATION, "export", found=f"types {export}")
    return export == ExternalMemory.DMA_BUF
