"""Driver, device, context, memory and sysman functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import InitDriverType
from tests.conformance.api.structures import (
    AddressRange,
    AllocationProperties,
    Answer,
    ContextDesc,
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


class CoreApi(ABC):
    """The part of the API without commands."""

    # ------------------------------------------------------------ driver

    @abstractmethod
    def ze_init_drivers(self, flags: int = InitDriverType.NPU, out: bool = True) -> Answer[Sequence[Handle]]:
        """`zeInitDrivers`: all drivers of these types."""

    @abstractmethod
    def ze_driver_get_api_version(self, driver: Handle, out: bool = True) -> Answer[int]: ...

    @abstractmethod
    def ze_driver_get_properties(self, driver: Handle, out: bool = True) -> Answer[DriverProperties]: ...

    @abstractmethod
    def ze_driver_get_ipc_properties(self, driver: Handle, out: bool = True) -> Answer[int]:
        """The flags."""

    @abstractmethod
    def ze_driver_get_extension_properties(
        self, driver: Handle, out: bool = True
    ) -> Answer[Sequence[ExtensionProperties]]: ...

    @abstractmethod
    def ze_driver_get_extension_function_address(
        self, driver: Handle, name: str | None, out: bool = True
    ) -> Answer[object]:
        """The extension's function table, opaque."""

    @abstractmethod
    def ze_driver_get_last_error_description(self, driver: Handle, out: bool = True) -> Answer[str]: ...

    # ------------------------------------------------------------ device

    @abstractmethod
    def ze_device_get(self, driver: Handle) -> Answer[Sequence[Handle]]: ...

    @abstractmethod
    def ze_device_get_sub_devices(self, device: Handle) -> Answer[Sequence[Handle]]: ...

    @abstractmethod
    def ze_device_get_properties(
        self, device: Handle, version: tuple[int, int] = (1, 0), out: bool = True
    ) -> Answer[DeviceProperties]:
        """`version` (1, 2) asks with the structure whose timer resolution is in cycles a second."""

    @abstractmethod
    def ze_device_get_compute_properties(self, device: Handle, out: bool = True) -> Answer[Sequence[int]]:
        """All numeric fields of the structure."""

    @abstractmethod
    def ze_device_get_image_properties(self, device: Handle, out: bool = True) -> Answer[Sequence[int]]:
        """All numeric fields of the structure."""

    @abstractmethod
    def ze_device_get_memory_properties(self, device: Handle) -> Answer[Sequence[MemoryProperties]]: ...

    @abstractmethod
    def ze_device_get_memory_access_properties(
        self, device: Handle, out: bool = True
    ) -> Answer[MemoryAccessProperties]: ...

    @abstractmethod
    def ze_device_get_external_memory_properties(
        self, device: Handle, out: bool = True
    ) -> Answer[ExternalMemoryProperties]: ...

    @abstractmethod
    def ze_device_get_p2p_properties(self, device: Handle, peer: Handle, out: bool = True) -> Answer[int]:
        """The flags."""

    @abstractmethod
    def ze_device_get_command_queue_group_properties(
        self, device: Handle
    ) -> Answer[Sequence[QueueGroupProperties]]: ...

    @abstractmethod
    def ze_device_get_status(self, device: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_device_get_global_timestamps(
        self, device: Handle, out: bool = True
    ) -> Answer[GlobalTimestamps]: ...

    @abstractmethod
    def ze_device_pci_get_properties_ext(self, device: Handle, out: bool = True) -> Answer[PciProperties]: ...

    # ------------------------------------------------------------ context

    @abstractmethod
    def ze_context_create(
        self, driver: Handle, desc: ContextDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_context_destroy(self, context: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_context_get_status(self, context: Handle) -> ZeResult: ...

    # ------------------------------------------------------------ memory

    @abstractmethod
    def ze_mem_alloc_host(
        self, context: Handle, desc: HostMemDesc | None, size: int, alignment: int = 0, out: bool = True
    ) -> Answer[Pointer]: ...

    @abstractmethod
    def ze_mem_alloc_device(
        self,
        context: Handle,
        desc: DeviceMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Answer[Pointer]: ...

    @abstractmethod
    def ze_mem_alloc_shared(
        self,
        context: Handle,
        device_desc: DeviceMemDesc | None,
        host_desc: HostMemDesc | None,
        size: int,
        alignment: int,
        device: Handle,
        out: bool = True,
    ) -> Answer[Pointer]: ...

    @abstractmethod
    def ze_mem_free(self, context: Handle, pointer: Pointer) -> ZeResult: ...

    @abstractmethod
    def ze_mem_get_alloc_properties(
        self, context: Handle, pointer: Pointer, out: bool = True, export: int = 0
    ) -> Answer[AllocationProperties]:
        """`export` stands for an export structure in `pNext` with these flags."""

    @abstractmethod
    def ze_mem_get_address_range(self, context: Handle, pointer: Pointer) -> Answer[AddressRange]: ...

    # ------------------------------------------------------------ sysman

    @abstractmethod
    def zes_device_get_properties(self, device: Handle) -> Answer[SysmanProperties]: ...

    @abstractmethod
    def zes_device_enum_engine_groups(self, device: Handle) -> Answer[Sequence[Handle]]: ...

    @abstractmethod
    def zes_engine_get_activity(self, engine: Handle) -> Answer[EngineActivity]: ...

    # ------------------------------------------------------------ what the device does not have

    @abstractmethod
    def call_unsupported(self, function: str, handle: Handle) -> ZeResult:
        """Calls the C function of this name on `handle`, with valid other arguments.

        For functions that the driver has to answer with UNSUPPORTED_FEATURE only.
        """
