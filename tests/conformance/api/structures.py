"""Descriptors that go into the calls, and what comes out of them. Fields are those of the C structures.

A descriptor that is None stands for a null pointer, a handle that is None for a null handle, and the
pointer 0 for a null pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import GraphFlag, GraphFormat

T = TypeVar("T")

Handle: TypeAlias = object | None
"""An object of the driver, or None for the null handle. Opaque to the suite."""
Handles: TypeAlias = "Sequence[Handle] | None"
Pointer: TypeAlias = int
"""An address in this process; 0 is the null pointer."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a call with outputs came to: `value` is None unless it succeeded."""

    result: ZeResult
    value: T | None = None

    def get(self) -> T:
        """The outputs of a call that has to succeed."""
        assert self.result == ZeResult.SUCCESS, f"{self.result!r} instead of SUCCESS"
        assert self.value is not None
        return self.value


# ---------------------------------------------------------------- descriptors


@dataclass(frozen=True)
class ContextDesc:
    flags: int = 0


@dataclass(frozen=True)
class HostMemDesc:
    """`import_fd` stands for an import structure in `pNext`, `export` for an export structure."""

    flags: int = 0
    export: int = 0
    import_fd: int | None = None


@dataclass(frozen=True)
class DeviceMemDesc:
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


@dataclass(frozen=True)
class CommandListDesc:
    """`mutable` stands for the mutable command list structure in `pNext`."""

    ordinal: int = 0
    flags: int = 0
    mutable: bool = False


@dataclass(frozen=True)
class FenceDesc:
    flags: int = 0


@dataclass(frozen=True)
class EventPoolDesc:
    count: int = 1
    flags: int = 0


@dataclass(frozen=True)
class EventDesc:
    index: int = 0


@dataclass(frozen=True)
class CopyRegion:
    origin_x: int = 0
    origin_y: int = 0
    origin_z: int = 0
    width: int = 0
    height: int = 0
    depth: int = 1


@dataclass(frozen=True)
class MutableCommandIdDesc:
    flags: int = 0


@dataclass(frozen=True)
class MutableGraphArgument:
    command_id: int
    argument: int
    value: Pointer


@dataclass(frozen=True)
class MutableGraphStrides:
    """Strides in elements, innermost first; belongs to the argument structure that precedes it."""

    strides: tuple[int, ...]


@dataclass(frozen=True)
class MutableCommandsDesc:
    """`chain` is the chain of structures in `pNext`."""

    chain: tuple[MutableGraphArgument | MutableGraphStrides, ...] = ()
    flags: int = 0


@dataclass(frozen=True)
class GraphDesc:
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
    """The descriptor of a compiled blob."""
    return GraphDesc(input=blob, format=GraphFormat.NATIVE, flags=flags)


# ---------------------------------------------------------------- properties


@dataclass(frozen=True)
class DriverProperties:
    uuid: bytes
    driver_version: int


@dataclass(frozen=True)
class ExtensionProperties:
    name: str
    version: int


@dataclass(frozen=True)
class DeviceProperties:
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


@dataclass(frozen=True)
class QueueGroupProperties:
    flags: int
    max_memory_fill_pattern_size: int
    num_queues: int


@dataclass(frozen=True)
class MemoryProperties:
    name: str
    max_clock_rate: int
    max_bus_width: int
    total_size: int


@dataclass(frozen=True)
class MemoryAccessProperties:
    host: int
    device: int
    shared_single_device: int
    shared_cross_device: int
    shared_system: int


@dataclass(frozen=True)
class ExternalMemoryProperties:
    allocation_import_types: int
    allocation_export_types: int


@dataclass(frozen=True)
class PciProperties:
    domain: int
    bus: int
    device: int
    function: int


@dataclass(frozen=True)
class GlobalTimestamps:
    host: int
    device: int


@dataclass(frozen=True)
class AllocationProperties:
    """`device` is None where the C call gives a null device handle.

    `fd` is the descriptor of exported memory if it was asked for, else -1. It is the caller's.
    """

    type: int
    id: int
    page_size: int
    device: Handle
    fd: int = -1


@dataclass(frozen=True)
class AddressRange:
    base: int
    size: int


@dataclass(frozen=True)
class MemoryUse:
    total: int
    allocated: int


# ---------------------------------------------------------------- graphs


@dataclass(frozen=True)
class DeviceGraphProperties:
    graph_extension_version: int
    compiler_major: int
    compiler_minor: int
    graph_format: int
    max_opset_version: int


@dataclass(frozen=True)
class DeviceGraphProperties2:
    elf_version: tuple[int, int, int]
    runtime_version: tuple[int, int, int]


@dataclass(frozen=True)
class GraphProperties:
    """Fields of all three versions; those that a version does not have are 0."""

    num_arguments: int
    init_stage_required: int = 0
    flags: int = 0


@dataclass(frozen=True)
class ArgumentProperties:
    """Fields of all three versions; those that a version does not have keep their defaults."""

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


@dataclass(frozen=True)
class ArgumentMetadata:
    type: int
    friendly_name: str
    data_type: int
    shape: tuple[int, ...]
    tensor_names: tuple[str, ...]
    input_name: str


@dataclass(frozen=True)
class GraphOutcome:
    """What create 3 gives: a graph if it succeeded, and a build log in either case."""

    graph: Handle
    log: Handle


@dataclass(frozen=True)
class TensorValue:
    pointer: Pointer


@dataclass(frozen=True)
class StridesValue:
    """Strides in elements, innermost first."""

    strides: tuple[int, ...]


# ---------------------------------------------------------------- sysman


@dataclass(frozen=True)
class SysmanProperties:
    brand_name: str
    vendor_name: str
    driver_version: str
    model_name: str = field(default="")


@dataclass(frozen=True)
class EngineActivity:
    active_time_us: int
    timestamp_us: int
