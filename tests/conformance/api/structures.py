"""Descriptors passed to the calls, and their outputs. Fields are those of the C structures.

A descriptor None stands for a null pointer, a handle None for a null handle, and the pointer 0 for a null
pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import GraphFlag, GraphFormat

T = TypeVar("T")

Handle: TypeAlias = object | None
"""A driver object, or None for the null handle. Opaque to the suite."""
Handles: TypeAlias = "Sequence[Handle] | None"
Pointer: TypeAlias = int
"""An address in this process; 0 is the null pointer."""


class Answer(NamedTuple, Generic[T]):
    """The result of a call with outputs: `value` is None unless it succeeded."""

    result: ZeResult
    value: T | None = None

    def get(self) -> T:
        """Return the outputs of a call that must succeed."""
        assert self.result == ZeResult.SUCCESS, f"{self.result!r} instead of SUCCESS"
        assert self.value is not None
        return self.value


# ---------------------------------------------------------------- descriptors


class ContextDesc(NamedTuple):
    flags: int = 0


FOR_READING = 4
"""`ZE_HOST_MEM_ALLOC_FLAG_BIAS_WRITE_COMBINED`: with imported memory, the device only reads it."""


class HostMemDesc(NamedTuple):
    """`import_fd` stands for an import structure in `pNext`, `export` for an export structure.

    `system_memory` (address and size) stands for the structure that imports the program's memory.
    """

    flags: int = 0
    export: int = 0
    import_fd: int | None = None
    system_memory: tuple[int, int] | None = None


class DeviceMemDesc(NamedTuple):
    flags: int = 0
    ordinal: int = 0
    export: int = 0
    import_fd: int | None = None


@dataclass(frozen=True)
class CommandQueueDesc:
    """`options` are those of the command queue extension, as a structure in `pNext`."""

    ordinal: int = 0
    index: int = 0
    mode: int = 0
    priority: int = 0
    options: int = 0


class CommandListDesc(NamedTuple):
    """`mutable` stands for the mutable command list structure in `pNext`."""

    ordinal: int = 0
    flags: int = 0
    mutable: bool = False


class FenceDesc(NamedTuple):
    flags: int = 0


@dataclass(frozen=True)
class EventPoolDesc:
    count: int = 1
    flags: int = 0


@dataclass(frozen=True)
class EventDesc:
    index: int = 0


class CopyRegion(NamedTuple):
    origin_x: int = 0
    origin_y: int = 0
    origin_z: int = 0
    width: int = 0
    height: int = 0
    depth: int = 1


class MutableCommandIdDesc(NamedTuple):
    flags: int = 0


class MutableGraphArgument(NamedTuple):
    command_id: int
    argument: int
    value: Pointer


class MutableGraphStrides(NamedTuple):
    """Strides in elements, innermost first; belongs to the preceding argument structure."""

    strides: tuple[int, ...]


class MutableCommandsDesc(NamedTuple):
    """`chain` is the chain of structures in `pNext`."""

    chain: tuple[MutableGraphArgument | MutableGraphStrides, ...] = ()
    flags: int = 0


class GraphDesc(NamedTuple):
    """`input` is the model or blob: bytes, an address (then `input_size` counts), or None for null."""

    input: bytes | Pointer | None = None
    format: int = GraphFormat.NGRAPH_LITE
    build_flags: str | None = None
    flags: int = 0
    input_size: int | None = None
    input_hash: int | None = None

    @property
    def size(self) -> int:
        if self.input_size is not None:
            return self.input_size
        return len(self.input) if isinstance(self.input, bytes) else 0


def native(blob: bytes, flags: int = GraphFlag(0)) -> GraphDesc:
    """Return the descriptor of a compiled blob."""
    return GraphDesc(input=blob, format=GraphFormat.NATIVE, flags=flags)


# ---------------------------------------------------------------- properties


class DriverProperties(NamedTuple):
    uuid: bytes
    driver_version: int


class ExtensionProperties(NamedTuple):
    name: str
    version: int


class DeviceProperties(NamedTuple):
    type: int
    vendor_id: int
    device_id: int
    flags: int
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
    timer_resolution: int
    timestamp_valid_bits: int
    uuid: bytes
    name: str


class QueueGroupProperties(NamedTuple):
    flags: int
    max_memory_fill_pattern_size: int
    num_queues: int


class MemoryProperties(NamedTuple):
    name: str
    max_clock_rate: int
    max_bus_width: int
    total_size: int


class MemoryAccessProperties(NamedTuple):
    host: int
    device: int
    shared_single_device: int
    shared_cross_device: int
    shared_system: int


class ExternalMemoryProperties(NamedTuple):
    allocation_import_types: int
    allocation_export_types: int


class PciProperties(NamedTuple):
    domain: int
    bus: int
    device: int
    function: int


class GlobalTimestamps(NamedTuple):
    host: int
    device: int


class AllocationProperties(NamedTuple):
    """`device` is None where the C call returns a null device handle.

    `fd` is the descriptor of exported memory if requested, else -1. The caller owns it.
    """

    type: int
    id: int
    page_size: int
    device: Handle
    fd: int = -1


class AddressRange(NamedTuple):
    base: int
    size: int


class MemoryUse(NamedTuple):
    total: int
    allocated: int


# ---------------------------------------------------------------- graphs


class DeviceGraphProperties(NamedTuple):
    graph_extension_version: int
    compiler_major: int
    compiler_minor: int
    graph_format: int
    max_opset_version: int


class DeviceGraphProperties2(NamedTuple):
    elf_version: tuple[int, int, int]
    runtime_version: tuple[int, int, int]


class GraphProperties(NamedTuple):
    """Fields of all three versions; those missing in a version are 0."""

    num_arguments: int
    init_stage_required: int = 0
    flags: int = 0


class ArgumentProperties(NamedTuple):
    """Fields of all three versions; those missing in a version keep their defaults."""

    name: str
    type: int
    dims: tuple[int, ...]
    network_precision: int
    network_layout: int
    device_precision: int
    device_layout: int
    quant_reverse_scale: float = 0.0
    quant_zero_point: int = 0
    dims_count: int = 0
    debug_friendly_name: str = ""
    associated_tensor_names: tuple[str, ...] = ()
    supports_strides: bool = False


class ArgumentMetadata(NamedTuple):
    type: int
    friendly_name: str
    data_type: int
    shape: tuple[int, ...]
    tensor_names: tuple[str, ...]
    input_name: str


class GraphOutcome(NamedTuple):
    """The outputs of create 3: a graph if it succeeded, and a build log in either case."""

    graph: Handle
    log: Handle


class TensorValue(NamedTuple):
    pointer: Pointer


class StridesValue(NamedTuple):
    """Strides in elements, innermost first."""

    strides: tuple[int, ...]


# ---------------------------------------------------------------- sysman


class SysmanProperties(NamedTuple):
    brand_name: str
    vendor_name: str
    driver_version: str
    model_name: str = ""


class EngineActivity(NamedTuple):
    active_time_us: int
    timestamp_us: int


# ---------------------------------------------------------------- metrics


class MetricGroupProperties(NamedTuple):
    name: str
    sampling_type: int
    domain: int
    metric_count: int


class MetricProperties(NamedTuple):
    name: str
    metric_type: int
    result_units: str
