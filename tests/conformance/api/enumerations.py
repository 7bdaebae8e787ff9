"""Constants of the public headers that the suite uses: `ze_api.h` and the NPU extensions."""

from __future__ import annotations

import enum

INFINITE = 2**64 - 1
"""`UINT64_MAX`: no time-out."""
API_VERSION = 1 << 16 | 16
GRAPH_EXTENSION = "ZE_extension_graph"
GRAPH_EXTENSION_VERSION = 1 << 16 | 17
PROFILING_EXTENSION = "ZE_extension_profiling_data"
QUEUE_EXTENSION = "ZE_extension_command_queue_npu"
CONTEXT_EXTENSION = "ZE_extension_context_npu"
DEVICE_EXTENSION = "ZE_extension_device_npu"
SYSTEM_MEMORY_EXTENSION = "ZE_extension_external_memmap_sysmem"
MUTABLE_EXTENSION = "ZE_experimental_mutable_command_list"
DRIVER_UUID = bytes.fromhex("017de9316b4d4fd4aa9b5bed77fc8e89")
VENDOR_INTEL = 0x8086
CACHE_DIR = "ZE_INTEL_NPU_CACHE_DIR"
CACHE_SIZE = "ZE_INTEL_NPU_CACHE_SIZE"


class InitDriverType(enum.IntFlag):  # ze_init_driver_type_flags_t
    GPU = 1
    NPU = 2


class DeviceType(enum.IntEnum):  # ze_device_type_t
    GPU = 1
    VPU = 5


class DeviceFlag(enum.IntFlag):  # ze_device_property_flags_t
    INTEGRATED = 1


class Requirements(enum.IntEnum):
    """`ze_validate_runtime_requirements_result_t`."""

    NOT_APPLICABLE = 0
    MET = 1
    NOT_MET = 3


class QueueGroupFlag(enum.IntFlag):  # ze_command_queue_group_property_flags_t
    COMPUTE = 1
    COPY = 2


class QueueMode(enum.IntEnum):  # ze_command_queue_mode_t
    DEFAULT = 0
    SYNCHRONOUS = 1
    ASYNCHRONOUS = 2


class QueuePriority(enum.IntEnum):  # ze_command_queue_priority_t
    NORMAL = 0
    LOW = 1
    HIGH = 2


class QueueOption(enum.IntFlag):
    """Options of the command queue extension."""

    TURBO = 1
    DEVICE_SYNC = 2


class WorkloadType(enum.IntEnum):  # ze_command_queue_workload_type_t
    DEFAULT = 0
    BACKGROUND = 1


class ListFlag(enum.IntFlag):  # ze_command_list_flags_t
    IN_ORDER = 8


class FenceFlag(enum.IntFlag):  # ze_fence_flags_t
    SIGNALED = 1


class MemoryType(enum.IntEnum):  # ze_memory_type_t
    UNKNOWN = 0
    HOST = 1
    DEVICE = 2
    SHARED = 3


class MemoryAccess(enum.IntFlag):  # ze_memory_access_cap_flags_t
    RW = 1
    ATOMIC = 2


class ExternalMemory(enum.IntFlag):  # ze_external_memory_type_flags_t
    OPAQUE_FD = 1
    DMA_BUF = 2
    STANDARD_ALLOCATION = 0x100


class MutableFlag(enum.IntFlag):  # ze_mutable_command_exp_flags_t
    KERNEL_ARGUMENTS = 1
    GRAPH_ARGUMENTS_DEPRECATED = 64
    GRAPH_ARGUMENTS = 128


class GraphFormat(enum.IntEnum):  # ze_graph_format_t
    NATIVE = 1
    NGRAPH_LITE = 2


class GraphFlag(enum.IntFlag):  # ze_graph_flags_t
    DISABLE_CACHING = 1
    ENABLE_PROFILING = 2
    INPUT_GRAPH_PERSISTENT = 4


class GraphProperty(enum.IntFlag):  # ze_graph_properties_flags_t
    LOADED_FROM_CACHE = 1
    COMPILED = 2
    PRE_COMPILED = 4
    NO_STANDARD_ALLOCATION = 8
    PROFILING_ENABLED = 16


class InitStage(enum.IntEnum):  # ze_graph_init_stage_t
    COMMAND_LIST_INITIALIZE = 1
    INITIALIZE = 2


class ArgumentType(enum.IntEnum):  # ze_graph_argument_type_t
    INPUT = 0
    OUTPUT = 1


class Precision(enum.IntEnum):  # ze_graph_argument_precision_t
    FP32 = 1
    FP16 = 2
    U8 = 4
    I32 = 5


class Layout(enum.IntEnum):  # ze_graph_argument_layout_t
    ANY = 0
    NCHW = 1
    NC = 0xC1


class ElementType(enum.IntEnum):  # ze_graph_metadata_type
    F16 = 4
    F32 = 5
    U8 = 14


class MemoryQuery(enum.IntEnum):  # ze_graph_memory_query_type_t
    DDR = 1
    DRIVER_CACHE = 2
    PROGRAM_CACHE = 3


class OptionType(enum.IntEnum):  # ze_npu_options_type_t
    COMPILER = 1
    DRIVER = 2


class ProfilingType(enum.IntEnum):  # ze_graph_profiling_type_t
    LAYER = 1
    TASK = 2
    RAW = 4


class LayerStatus(enum.IntEnum):  # ze_layer_status_t
    NOT_RUN = 1
    OPTIMIZED_OUT = 2
    EXECUTED = 3


class TaskUnit(enum.IntEnum):  # ze_task_execute_type_t
    NONE = 0
    DPU = 1
    SW = 2
    DMA = 3
