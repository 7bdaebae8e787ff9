"""Driver, device, context, memory and sysman functions of the native driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api import structures as api
from tests.conformance.api.enumerations import CONTEXT_EXTENSION, InitDriverType
from tests.conformance.api.structures import Answer, Handle, Pointer
from tests.conformance.native_driver import library as lib
from tests.conformance.native_driver.session import (
    Session,
    answer,
    call,
    handle,
    listed,
    made,
    plain,
    pointer,
    properties,
    told,
)

_EXPORT_DESC, _IMPORT_FD, _EXPORT_FD, _SYSTEM_MEMORY = 0x18, 0x19, 0x1A, 0x20037
_PROPERTIES, _PROPERTIES_1_2 = 0x3, 0x20006


def _same(handle: int) -> Handle:
    return handle


class NativeCore(Session):
    """The part of the API without commands."""

    # ------------------------------------------------------------ driver

    def ze_init_drivers(self, flags: int = InitDriverType.NPU, out: bool = True) -> Answer[Sequence[Handle]]:
        desc = lib.InitDriverTypeDesc(flags=flags)
        count = c_uint32()
        result = call("zeInitDrivers", ctypes.byref(count) if out else None, None, ctypes.byref(desc))
        if result != ZeResult.SUCCESS:
            return Answer(result)
        entries = (c_void_p * count.value)()
        result = call("zeInitDrivers", ctypes.byref(count), entries, ctypes.byref(desc))
        return answer(result, lambda: list(entries))

    ze_driver_get_api_version = told("zeDriverGetApiVersion", c_uint32, lambda struct: int(struct.value))

    ze_driver_get_properties = told(
        "zeDriverGetProperties",
        lib.DriverProperties,
        lambda struct: api.DriverProperties(bytes(struct.uuid), struct.driverVersion),
    )

    ze_driver_get_ipc_properties = told(
        "zeDriverGetIpcProperties", lambda: lib.Flags(flags=77), lambda struct: int(struct.flags)
    )

    ze_driver_get_extension_properties = listed(
        "zeDriverGetExtensionProperties",
        lib.ExtensionProperties,
        lambda struct: api.ExtensionProperties(struct.name.decode(), struct.version),
    )

    def ze_driver_get_extension_function_address(
        self, driver: Handle, name: str | None, out: bool = True
    ) -> Answer[object]:
        text = None if name is None else name.encode()
        return made("zeDriverGetExtensionFunctionAddress", out, handle(driver), text)

    ze_driver_get_last_error_description = told(
        "zeDriverGetLastErrorDescription", c_char_p, lambda struct: (struct.value or b"").decode()
    )

    def zex_disk_cache_set_size(self, driver: Handle, size: int) -> ZeResult:
        return self._private(driver, "zexDiskCacheSetSize", c_size_t(size))

    def zex_disk_cache_get_size(self, driver: Handle) -> Answer[int]:
        size = c_size_t()
        result = self._private(driver, "zexDiskCacheGetSize", ctypes.byref(size))
        return answer(result, lambda: size.value)

    def zex_disk_cache_get_directory(self, driver: Handle, room: int = 4096) -> Answer[str]:
        text, size = ctypes.create_string_buffer(room), c_size_t(room)
        result = self._private(driver, "zexDiskCacheGetDirectory", text, ctypes.byref(size))
        return answer(result, text.raw[: size.value].decode)

    def zex_context_set_idle_pruning_timeout(self, context: Handle, timeout_ms: int) -> ZeResult:
        (driver,) = self.ze_init_drivers().get()
        name = "zexContextSetIdlePruningTimeout"
        return self._private(driver, name, handle(context), c_uint64(timeout_ms))

    def ze_context_set_properties(self, context: Handle, options: int) -> ZeResult:
        properties = lib.Flags(stype=1, flags=options)
        return ZeResult(self._context_table().SetProperties(handle(context), ctypes.byref(properties)))

    def ze_context_release_memory(self, context: Handle) -> ZeResult:
        return ZeResult(self._context_table().ReleaseMemory(handle(context)))

    def _context_table(self) -> lib.Table:
        (driver,) = self.ze_init_drivers().get()
        address = self.ze_driver_get_extension_function_address(driver, CONTEXT_EXTENSION).get()
        assert isinstance(address, int)
        return lib.Table(address, ["SetProperties", "ReleaseMemory"])

    def _private(self, driver: Handle, name: str, *arguments: Any) -> ZeResult:
        address = self.ze_driver_get_extension_function_address(driver, name).get()
        assert isinstance(address, int)
        return ZeResult(ctypes.CFUNCTYPE(ctypes.c_uint32)(address)(*arguments))

    # ------------------------------------------------------------ device

    ze_device_get = listed("zeDeviceGet", c_void_p, _same)

    ze_device_get_sub_devices = listed("zeDeviceGetSubDevices", c_void_p, _same)

    def ze_device_get_properties(
        self, device: Handle, version: tuple[int, int] = (1, 0), out: bool = True
    ) -> Answer[api.DeviceProperties]:
        struct = lib.DeviceProperties(stype=_PROPERTIES_1_2 if version >= (1, 2) else _PROPERTIES)
        result = properties("zeDeviceGetProperties", struct, out, handle(device))
        return answer(result, lambda: api.DeviceProperties(**_device_fields(struct)))

    ze_device_get_compute_properties = told(
        "zeDeviceGetComputeProperties", lib.ComputeProperties, lambda struct: list(struct.numbers)
    )

    ze_device_get_image_properties = told(
        "zeDeviceGetImageProperties",
        lib.ImageProperties,
        lambda struct: [*struct.dims, struct.maxImageBufferSize, *struct.numbers],
    )

    ze_device_get_memory_properties = listed(
        "zeDeviceGetMemoryProperties",
        lib.MemoryProperties,
        lambda e: api.MemoryProperties(e.name.decode(), e.max_clock_rate, e.max_bus_width, e.total_size),
    )

    ze_device_get_memory_access_properties = told(
        "zeDeviceGetMemoryAccessProperties",
        lib.MemoryAccessProperties,
        lambda struct: api.MemoryAccessProperties(*struct.capabilities),
    )

    ze_device_get_external_memory_properties = told(
        "zeDeviceGetExternalMemoryProperties",
        lib.ExternalMemoryProperties,
        lambda struct: api.ExternalMemoryProperties(*struct.types[:2]),
    )

    ze_device_get_p2p_properties = told(
        "zeDeviceGetP2PProperties", lambda: lib.Flags(flags=77), lambda struct: int(struct.flags), [c_void_p]
    )

    ze_device_get_command_queue_group_properties = listed(
        "zeDeviceGetCommandQueueGroupProperties",
        lib.QueueGroupProperties,
        lambda e: api.QueueGroupProperties(e.flags, e.max_memory_fill_pattern_size, e.num_queues),
    )

    ze_device_get_status = plain("zeDeviceGetStatus")

    def ze_device_get_global_timestamps(
        self, device: Handle, out: bool = True
    ) -> Answer[api.GlobalTimestamps]:
        host, ticks = c_uint64(), c_uint64()
        places = (ctypes.byref(host), ctypes.byref(ticks)) if out else (None, None)
        result = call("zeDeviceGetGlobalTimestamps", handle(device), *places)
        return answer(result, lambda: api.GlobalTimestamps(host.value, ticks.value))

    def ze_device_get_runtime_requirements(
        self, device: Handle, graph: Handle, out: bool = True
    ) -> Answer[str]:
        desc = lib.RequirementsGraphDesc(stype=0x20045, requirementsSrc=graph)
        size = c_size_t()
        name, place = "zeDeviceGetRuntimeRequirements", pointer(size, out)
        result = call(name, handle(device), ctypes.byref(desc), place, None)
        if result != ZeResult.SUCCESS:
            return Answer(result)
        text = ctypes.create_string_buffer(size.value)
        result = call(name, handle(device), ctypes.byref(desc), place, text)
        return answer(result, text.value.decode)

    ze_device_get_runtime_requirements_key = told(
        "zeDeviceGetRuntimeRequirementsKey", c_char_p, lambda text: str(text.value.decode())
    )

    def ze_device_validate_runtime_requirements(
        self, device: Handle, text: str, out: bool = True
    ) -> Answer[int]:
        found = lib.RequirementsOutput(result=77)
        name = "zeDeviceValidateRuntimeRequirements"
        result = call(name, handle(device), text.encode(), pointer(found, out))
        return answer(result, lambda: int(found.result))

    ze_device_pci_get_properties_ext = told(
        "zeDevicePciGetPropertiesExt",
        lib.PciProperties,
        lambda struct: api.PciProperties(struct.domain, struct.bus, struct.device, struct.function),
    )

    # ------------------------------------------------------------ context

    def ze_context_create(
        self, driver: Handle, desc: api.ContextDesc | None, out: bool = True
    ) -> Answer[Handle]:
        given = None if desc is None else lib.Flags(flags=desc.flags)
        created = made("zeContextCreate", out, handle(driver), pointer(given))
        if created.value is not None:
            self._contexts.add(created.value)
        return created

    def ze_context_destroy(self, context: Handle) -> ZeResult:
        self._contexts.discard(context)
        return call("zeContextDestroy", handle(context))

    ze_context_get_status = plain("zeContextGetStatus")

    # ------------------------------------------------------------ memory

    def ze_mem_alloc_host(
        self, context: Handle, desc: api.HostMemDesc | None, size: int, alignment: int = 0, out: bool = True
    ) -> Answer[Pointer]:
        given = None if desc is None else lib.Flags(flags=desc.flags)
        extra = _hang(given, desc)
        place = (c_size_t(size), c_size_t(alignment))
        result = made("zeMemAllocHost", out, handle(context), pointer(given), *place)
        del extra
        return result

    def ze_mem_alloc_device(
        self,
        context: Handle,
        desc: api.DeviceMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Answer[Pointer]:
        given = None if desc is None else lib.DeviceMemDesc(flags=desc.flags, ordinal=desc.ordinal)
        extra = _hang(given, desc)
        place = (c_size_t(size), c_size_t(alignment), handle(device))
        result = made("zeMemAllocDevice", out, handle(context), pointer(given), *place)
        del extra
        return result

    def ze_mem_alloc_shared(
        self,
        context: Handle,
        device_desc: api.DeviceMemDesc | None,
        host_desc: api.HostMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Answer[Pointer]:
        first = None if device_desc is None else lib.DeviceMemDesc(flags=device_desc.flags)
        second = None if host_desc is None else lib.Flags(flags=host_desc.flags)
        extras = _hang(first, device_desc), _hang(second, host_desc)
        place = (c_size_t(size), c_size_t(alignment), handle(device))
        result = made("zeMemAllocShared", out, handle(context), pointer(first), pointer(second), *place)
        del extras
        return result

    def ze_mem_free(self, context: Handle, pointer: Pointer) -> ZeResult:
        return call("zeMemFree", handle(context), c_void_p(pointer))

    def ze_mem_get_alloc_properties(
        self, context: Handle, pointer: Pointer, out: bool = True, export: int = 0
    ) -> Answer[api.AllocationProperties]:
        struct = lib.AllocationProperties()
        exported = lib.ExternalFd(stype=_EXPORT_FD, flags=export, fd=-1)
        if export:
            struct.pNext = ctypes.addressof(exported)
        device = c_void_p()
        result = call(
            "zeMemGetAllocProperties",
            handle(context),
            c_void_p(pointer),
            ctypes.byref(struct) if out else None,
            ctypes.byref(device),
        )
        return answer(
            result,
            lambda: api.AllocationProperties(
                struct.type, struct.id, struct.pageSize, device.value, exported.fd if export else -1
            ),
        )

    def ze_mem_get_address_range(self, context: Handle, pointer: Pointer) -> Answer[api.AddressRange]:
        base, size = c_void_p(), c_size_t()
        places = (ctypes.byref(base), ctypes.byref(size))
        result = call("zeMemGetAddressRange", handle(context), c_void_p(pointer), *places)
        return answer(result, lambda: api.AddressRange(base.value or 0, size.value))

    # ------------------------------------------------------------ sysman

    zes_device_get_properties = told(
        "zesDeviceGetProperties",
        lib.SysmanProperties,
        lambda struct: api.SysmanProperties(
            *(getattr(struct, name).decode() for name in api.SysmanProperties._fields)
        ),
    )

    zes_device_enum_engine_groups = listed("zesDeviceEnumEngineGroups", c_void_p, _same)

    zes_engine_get_activity = told(
        "zesEngineGetActivity",
        lib.EngineStats,
        lambda struct: api.EngineActivity(struct.activeTime, struct.timestamp),
    )

    # ------------------------------------------------------------ unsupported by the device

    def call_unsupported(self, function: str, handle: Handle) -> ZeResult:
        room = (c_uint64 * 64)()
        return call(function, c_void_p(handle), *[ctypes.byref(room)] * 9)  # type: ignore[arg-type]


class _SystemMemory(ctypes.Structure):
    _fields_ = (("stype", c_uint32), ("pNext", c_void_p), ("pSystemMemory", c_void_p), ("size", c_uint64))


def _hang(given: Any, desc: api.HostMemDesc | api.DeviceMemDesc | None) -> Any:
    """Chain the export or import structure of a descriptor to the C one; it must stay alive."""
    if given is None or desc is None:
        return None
    extra: Any = None
    if desc.import_fd is not None:
        extra = lib.ExternalFd(stype=_IMPORT_FD, flags=2, fd=desc.import_fd)
    elif desc.export:
        extra = lib.Flags(stype=_EXPORT_DESC, flags=desc.export)
    elif isinstance(desc, api.HostMemDesc) and desc.system_memory is not None:
        extra = _SystemMemory(_SYSTEM_MEMORY, None, *desc.system_memory)
    if extra is not None:
        given.pNext = ctypes.addressof(extra)
    return extra


def _device_fields(struct: Any) -> dict[str, Any]:
    fields = {name: getattr(struct, name) for name in api.DeviceProperties._fields}
    return {**fields, "uuid": bytes(struct.uuid), "name": struct.name.decode()}
