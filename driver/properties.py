"""Records of Level Zero's property calls, with fields and numbers of `ze_api.h`, `zes_api.h`.

Values are those of the real driver for the platform, as far as they are known.
"""

from __future__ import annotations

import enum

import msgspec


class DeviceType(enum.IntEnum):
    """`ze_device_type_t`."""

    GPU = 1
    CPU = 2
    FPGA = 3
    MCA = 4
    VPU = 5


class DevicePropertyFlag(enum.IntFlag):
    """`ze_device_property_flags_t`."""

    INTEGRATED = 1
    SUBDEVICE = 2
    ECC = 4
    ONDEMANDPAGING = 8


class MemoryType(enum.IntEnum):
    """`ze_memory_type_t`."""

    UNKNOWN = 0
    HOST = 1
    DEVICE = 2
    SHARED = 3


class ExternalMemoryFlag(enum.IntFlag):
    """`ze_external_memory_type_flags_t`."""

    NONE = 0
    OPAQUE_FD = 1
    DMA_BUF = 2
    STANDARD_ALLOCATION = 0x100


class QueueGroupFlag(enum.IntFlag):
    """`ze_command_queue_group_property_flags_t`."""

    COMPUTE = 1
    COPY = 2


class MemoryAccessFlag(enum.IntFlag):
    """`ze_memory_access_cap_flags_t`."""

    NONE = 0
    RW = 1
    ATOMIC = 2


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records below."""


class DriverProperties(Record, frozen=True, kw_only=True):
    """`ze_driver_properties_t`."""

    uuid: bytes
    driver_version: int


class IpcProperties(Record, frozen=True, kw_only=True):
    """`ze_driver_ipc_properties_t`: this device has no IPC handles; memory is exported by descriptor."""

    flags: int = 0


class DeviceProperties(Record, frozen=True, kw_only=True):
    """`ze_device_properties_t`. Clock in Hz, `timer_resolution` in nanoseconds per tick, memory in bytes."""

    type: DeviceType
    vendor_id: int
    device_id: int
    flags: DevicePropertyFlag
    subdevice_id: int
    core_clock_rate: int
    max_mem_alloc_size: int
    max_hardware_contexts: int
    max_command_queue_priority: int
    num_threads_per_eu: int
    physical_eu_simd_width: int
    num_eus_per_subslice: int
    num_subslices_per_slice: int
    num_slices: int
    timer_resolution: float
    timestamp_valid_bits: int
    kernel_timestamp_valid_bits: int
    uuid: bytes
    name: str


class ComputeProperties(Record, frozen=True, kw_only=True):
    """`ze_device_compute_properties_t`: zeros; an NPU runs no user kernels."""

    max_total_group_size: int = 0
    max_shared_local_memory: int = 0
    num_sub_group_sizes: int = 0


class ImageProperties(Record, frozen=True, kw_only=True):
    """`ze_device_image_properties_t`: zeros."""

    max_image_dims_1d: int = 0
    max_image_dims_2d: int = 0
    max_image_dims_3d: int = 0


class MemoryProperties(Record, frozen=True, kw_only=True):
    """`ze_device_memory_properties_t`."""

    name: str = "DDR"
    flags: int = 0
    max_clock_rate: int = 0
    max_bus_width: int = 0
    total_size: int = 0


class MemoryAccessProperties(Record, frozen=True, kw_only=True):
    """`ze_device_memory_access_properties_t`."""

    host_alloc_capabilities: MemoryAccessFlag = MemoryAccessFlag.RW | MemoryAccessFlag.ATOMIC
    device_alloc_capabilities: MemoryAccessFlag = MemoryAccessFlag.RW | MemoryAccessFlag.ATOMIC
    shared_single_device_alloc_capabilities: MemoryAccessFlag = MemoryAccessFlag.NONE
    shared_cross_device_alloc_capabilities: MemoryAccessFlag = MemoryAccessFlag.NONE
    shared_system_alloc_capabilities: MemoryAccessFlag = MemoryAccessFlag.NONE


class ExternalMemoryProperties(Record, frozen=True, kw_only=True):
    """`ze_device_external_memory_properties_t`: memory is passed as a descriptor, like DMA-BUF."""

    memory_allocation_import_types: ExternalMemoryFlag = (
        ExternalMemoryFlag.DMA_BUF | ExternalMemoryFlag.STANDARD_ALLOCATION
    )
    memory_allocation_export_types: ExternalMemoryFlag = ExternalMemoryFlag.DMA_BUF
    image_import_types: ExternalMemoryFlag = ExternalMemoryFlag.NONE
    image_export_types: ExternalMemoryFlag = ExternalMemoryFlag.NONE


class P2PProperties(Record, frozen=True, kw_only=True):
    """`ze_device_p2p_properties_t`."""

    flags: int = 0


class RequirementsResult(enum.IntEnum):
    """`ze_validate_runtime_requirements_result_t`, without the value that this device never gives."""

    NOT_APPLICABLE = 0
    MET = 1
    NOT_MET = 3


class QueueGroupProperties(Record, frozen=True, kw_only=True):
    """`ze_command_queue_group_properties_t`."""

    flags: QueueGroupFlag
    max_memory_fill_pattern_size: int
    num_queues: int


class PciProperties(Record, frozen=True, kw_only=True):
    """`ze_pci_ext_properties_t`: address of the device; the speed is unknown."""

    domain: int
    bus: int
    device: int
    function: int
    max_bandwidth: int = -1


class MemoryAllocationProperties(Record, frozen=True, kw_only=True):
    """`ze_memory_allocation_properties_t`; `id` counts from 1 in each context, `page_size` in bytes."""

    type: MemoryType
    id: int
    page_size: int


class ExtensionProperties(Record, frozen=True, kw_only=True):
    """`ze_driver_extension_properties_t`; `version` is major << 16 | minor."""

    name: str
    version: int


class SysmanProperties(Record, frozen=True, kw_only=True):
    """`zes_device_properties_t`, the fields that the NPU fills."""

    core: DeviceProperties
    num_subdevices: int
    serial_number: str
    board_number: str
    brand_name: str
    model_name: str
    vendor_name: str
    driver_version: str


class EngineGroup(enum.IntEnum):
    """`zes_engine_group_t`: the only one of an NPU."""

    COMPUTE_ALL = 1


class EngineStats(Record, frozen=True, kw_only=True):
    """`zes_engine_stats_t`: the engine's busy time and the time of the reading, in microseconds."""

    active_time: int
    timestamp: int
