"""Numbers and records of the graph extension, with the names of `ze_graph_ext.h`.

Strings and arrays are truncated and padded as the C structures do it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from softnpu.driver.properties import Record
from softnpu.emulator.blob.argument_bounds import dimensions
from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, ArgumentMeta
from softnpu.emulator.interface.commands import MAX_DIMS

MAX_NAME = 256
"""Bytes of a name including its NUL."""
MAX_TENSOR_NAMES = 32
MAX_METADATA_DIMS = 8
DYNAMIC_DIMENSION = 2**64 - 1
"""In metadata: a dimension that each execution sets."""


class GraphFormat(enum.IntEnum):
    """`ze_graph_format_t`."""

    NATIVE = 1
    NGRAPH_LITE = 2


class GraphPropertyFlag(enum.IntFlag):
    """`ze_graph_properties_flags_t`."""

    NONE = 0
    LOADED_FROM_CACHE = 1
    COMPILED = 2
    PRE_COMPILED = 4
    NO_STANDARD_ALLOCATION = 8
    PROFILING_ENABLED = 16


class InitStage(enum.IntEnum):
    """`ze_graph_init_stage_t`: what a graph needs before its execution."""

    COMMAND_LIST_INITIALIZE = 1
    INITIALIZE = 2


class ArgumentType(enum.IntEnum):
    """`ze_graph_argument_type_t`."""

    INPUT = 0
    OUTPUT = 1


class Precision(enum.IntEnum):
    """`ze_graph_argument_precision_t`."""

    UNKNOWN = 0
    FP32 = 1
    FP16 = 2
    UINT16 = 3
    UINT8 = 4
    INT32 = 5
    INT16 = 6
    INT8 = 7
    BIN = 8
    BF16 = 9
    UINT32 = 10
    UINT4 = 11
    INT4 = 12
    DYNAMIC = 13
    BOOLEAN = 14
    FP64 = 15
    UINT64 = 16
    INT64 = 17
    NF4 = 18
    FP8_E4M3 = 19
    FP8_E5M2 = 20
    FP8_E8M0 = 21
    UINT2 = 22
    INT2 = 23


class Layout(enum.IntEnum):
    """`ze_graph_argument_layout_t`."""

    ANY = 0
    NCHW = 1
    NHWC = 2
    NCDHW = 3
    NDHWC = 4
    OIHW = 0x40
    C = 0x60
    CHW = 0x80
    HW = 0xC0
    NC = 0xC1
    CN = 0xC2
    BLOCKED = 0xC8


class MetadataType(enum.IntEnum):
    """`ze_graph_metadata_type`."""

    UNDEFINED = 0
    DYNAMIC = 1
    BOOLEAN = 2
    BF16 = 3
    F16 = 4
    F32 = 5
    F64 = 6
    I4 = 7
    I8 = 8
    I16 = 9
    I32 = 10
    I64 = 11
    U1 = 12
    U4 = 13
    U8 = 14
    U16 = 15
    U32 = 16
    U64 = 17


class MemoryQuery(enum.IntEnum):
    """`ze_graph_memory_query_type_t`."""

    DDR = 1
    DRIVER_CACHE = 2
    PROGRAM_CACHE = 3


class OptionType(enum.IntEnum):
    """`ze_npu_options_type_t`: options of the compiler or of the driver."""

    COMPILER = 1
    DRIVER = 2


_PRECISIONS = {
    "f64": Precision.FP64, "f32": Precision.FP32, "f16": Precision.FP16, "bf16": Precision.BF16,
    "i64": Precision.INT64, "i32": Precision.INT32, "i16": Precision.INT16, "i8": Precision.INT8,
    "i4": Precision.INT4, "i2": Precision.INT2, "u64": Precision.UINT64, "u32": Precision.UINT32,
    "u16": Precision.UINT16, "u8": Precision.UINT8, "u4": Precision.UINT4, "u2": Precision.UINT2,
    "u1": Precision.BIN, "boolean": Precision.BOOLEAN, "nf4": Precision.NF4, "dynamic": Precision.DYNAMIC,
    "f8e4m3": Precision.FP8_E4M3, "f8e5m2": Precision.FP8_E5M2, "f8e8m0": Precision.FP8_E8M0,
}  # fmt: skip
_METADATA_TYPES = {kind.name.lower(): kind for kind in MetadataType}
_RANK_LAYOUTS = (Layout.ANY, Layout.C, Layout.NC, Layout.CHW, Layout.NCHW, Layout.NCDHW)


class GraphProperties(Record, frozen=True, kw_only=True):
    """`ze_graph_properties_t`, version 1."""

    num_graph_args: int


class GraphProperties2(GraphProperties, frozen=True, kw_only=True):
    """Version 2."""

    init_stage_required: InitStage


class GraphProperties3(GraphProperties2, frozen=True, kw_only=True):
    """Version 3."""

    flags: GraphPropertyFlag


class DeviceGraphProperties(Record, frozen=True, kw_only=True):
    """`ze_device_graph_properties_t`; versions are (major, minor)."""

    graph_extension_version: int
    compiler_version: tuple[int, int]
    graph_formats_supported: GraphFormat
    max_ov_opset_version_supported: int


class DeviceGraphProperties2(DeviceGraphProperties, frozen=True, kw_only=True):
    """Version 2: the versions (major, minor, patch) of native binaries and of their runtime."""

    elf_version: tuple[int, int, int]
    runtime_version: tuple[int, int, int]


class ArgumentProperties(Record, frozen=True, kw_only=True):
    """`ze_graph_argument_properties_t`. `dims` are five; unused ones are 1.

    Dynamic dimensions are given by their upper bounds, or by what `argument_bounds` reports instead.

    The build flags apply before compilation, so the network has the precision and the dimensions of the
    memory. The layout is the default for that number of dimensions.
    """

    name: str
    type: ArgumentType
    dims: tuple[int, ...]
    network_precision: Precision
    network_layout: Layout
    device_precision: Precision
    device_layout: Layout


class ArgumentProperties2(ArgumentProperties, frozen=True, kw_only=True):
    """Version 2; there is no hidden quantisation."""

    quant_reverse_scale: float
    quant_zero_point: int


class ArgumentProperties3(ArgumentProperties2, frozen=True, kw_only=True):
    """Version 3, with the optional stride structure."""

    dims_count: int
    debug_friendly_name: str
    associated_tensor_names: tuple[str, ...]
    supports_strides: bool


class ArgumentMetadata(Record, frozen=True, kw_only=True):
    """`ze_graph_argument_metadata_t`: the argument as in the IR and the build flags.

    2**64 - 1 is a dynamic dimension.
    """

    type: ArgumentType
    friendly_name: str
    data_type: MetadataType
    shape: tuple[int, ...]
    tensor_names: tuple[str, ...]
    input_name: str


class MemoryUse(Record, frozen=True, kw_only=True):
    """`ze_graph_memory_query_t`, in bytes."""

    total: int
    allocated: int


def argument_properties(meta: ArgumentMeta, config: Mapping[str, str]) -> ArgumentProperties3:
    """Return all properties of an argument; lower versions are a subset. `config`: of the graph."""
    dims = dimensions(meta, config)[:MAX_DIMS]
    kind, layout = precision(meta.element_type), _layout_of_rank(len(meta.shape))
    return ArgumentProperties3(
        name=_name(meta),
        type=ArgumentType.INPUT if meta.input else ArgumentType.OUTPUT,
        dims=(*dims, *(1,) * (MAX_DIMS - len(dims))),
        network_precision=kind,
        network_layout=layout,
        device_precision=kind,
        device_layout=layout,
        quant_reverse_scale=1.0 if meta.input else 0.0,
        quant_zero_point=0,
        dims_count=len(dims),
        debug_friendly_name=cut(meta.friendly_name or meta.name),
        associated_tensor_names=tuple(cut(name) for name in meta.names[:MAX_TENSOR_NAMES]),
        supports_strides=meta.strides,
    )


def _name(meta: ArgumentMeta) -> str:
    # the names of a state's two arguments differ in their prefixes only, by which programs pair them: what
    # follows ASSIGN must be cut to the length that it has after READ_VALUE
    room = MAX_NAME - 1
    name = meta.node_name or meta.name
    return cut(name, room - len(READ_VALUE) + len(ASSIGN) if name.startswith(ASSIGN) else room)


def argument_metadata(meta: ArgumentMeta) -> ArgumentMetadata:
    """Return the answer of `pfnGraphGetArgumentMetadata`."""
    shape = meta.model_shape[:MAX_METADATA_DIMS]
    return ArgumentMetadata(
        type=ArgumentType.INPUT if meta.input else ArgumentType.OUTPUT,
        friendly_name=cut(meta.friendly_name or meta.name),
        data_type=_METADATA_TYPES.get(meta.element_type, MetadataType.UNDEFINED),
        shape=tuple(DYNAMIC_DIMENSION if dim < 0 else dim for dim in shape),
        tensor_names=tuple(cut(name) for name in meta.names[:MAX_TENSOR_NAMES]),
        input_name=cut(meta.node_name or meta.name),
    )


def precision(element_type: str) -> Precision:
    """Return the precision of an OpenVINO element type."""
    return _PRECISIONS.get(element_type, Precision.UNKNOWN)


def cut(name: str, room: int = MAX_NAME - 1) -> str:
    """Truncate a name to its array: at most `room` bytes of UTF-8, without splitting a character."""
    return name.encode()[:room].decode(errors="ignore")


def _layout_of_rank(rank: int) -> Layout:
    return _RANK_LAYOUTS[rank] if rank < len(_RANK_LAYOUTS) else Layout.ANY
