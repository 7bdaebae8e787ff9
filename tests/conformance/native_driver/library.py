"""The C library: its location, functions and structures."""

from __future__ import annotations

import ctypes
from ctypes import (
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

from tests.native.building import build

_RESTYPE = c_uint32


class Library:
    """`libze_loader.so.1`, loaded once: its functions return results as numbers."""

    _loaded: ClassVar[ctypes.CDLL | None] = None

    @classmethod
    def get(cls) -> ctypes.CDLL:
        """Return the library, built if necessary."""
        if cls._loaded is None:
            cls._loaded = ctypes.CDLL(str(build().loader))
        return cls._loaded


def function(name: str) -> Any:
    """Return the exported function of this name."""
    struct = getattr(Library.get(), name)
    struct.restype = _RESTYPE
    return struct


class Base(ctypes.Structure):
    """The common header of extensible structures."""

    _fields_ = (("stype", c_uint32), ("pNext", c_void_p))


def names(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


def structure(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """Return an extensible structure with these fields after `stype` and `pNext`."""
    return type(name, (Base,), {"_fields_": fields})


U32, U64, SIZE, PTR = c_uint32, c_uint64, c_size_t, c_void_p

InitDriverTypeDesc = structure("InitDriverTypeDesc", ("flags", U32))
DriverProperties = structure("DriverProperties", ("uuid", c_uint8 * 16), ("driverVersion", U32))
Flags = structure("Flags", ("flags", U32))
DeviceProperties = structure(
    "DeviceProperties",
    ("type", U32),
    ("vendor_id", U32),
    ("device_id", U32),
    ("flags", U32),
    ("subdevice_id", U32),
    ("core_clock_rate", U32),
    ("max_mem_alloc_size", U64),
    ("max_hardware_contexts", U32),
    ("max_command_queue_priority", U32),
    ("num_threads_per_eu", U32),
    ("physical_eu_simd_width", U32),
    ("num_eus_per_subslice", U32),
    ("num_subslices_per_slice", U32),
    ("num_slices", U32),
    ("timer_resolution", U64),
    ("timestamp_valid_bits", U32),
    ("kernel_timestamp_valid_bits", U32),
    ("uuid", c_uint8 * 16),
    ("name", c_char * 256),
)
ComputeProperties = structure("ComputeProperties", ("numbers", U32 * 17))
ImageProperties = structure(
    "ImageProperties", ("dims", U32 * 3), ("maxImageBufferSize", U64), ("numbers", U32 * 4)
)
MemoryProperties = structure(
    "MemoryProperties",
    ("flags", U32),
    ("max_clock_rate", U32),
    ("max_bus_width", U32),
    ("total_size", U64),
    ("name", c_char * 256),
)
MemoryAccessProperties = structure("MemoryAccessProperties", ("capabilities", U32 * 5))
ExternalMemoryProperties = structure("ExternalMemoryProperties", ("types", U32 * 4))
QueueGroupProperties = structure(
    "QueueGroupProperties", ("flags", U32), ("max_memory_fill_pattern_size", SIZE), ("num_queues", U32)
)
PciProperties = structure(
    "PciProperties",
    ("domain", U32),
    ("bus", U32),
    ("device", U32),
    ("function", U32),
    ("genVersion", c_int),
    ("width", c_int),
    ("maxBandwidth", c_int64),
)
DeviceMemDesc = structure("DeviceMemDesc", ("flags", U32), ("ordinal", U32))
ExternalFd = structure("ExternalFd", ("flags", U32), ("fd", c_int))
AllocationProperties = structure("AllocationProperties", ("type", U32), ("id", U64), ("pageSize", U64))
QueueDesc = structure(
    "QueueDesc", ("ordinal", U32), ("index", U32), ("flags", U32), ("mode", U32), ("priority", U32)
)
QueueOptions = structure("QueueOptions", ("options", U32))
ListDesc = structure("ListDesc", ("ordinal", U32), ("flags", U32))
EventPoolDesc = structure("EventPoolDesc", ("flags", U32), ("count", U32))
EventDesc = structure("EventDesc", ("index", U32), ("signal", U32), ("wait", U32))
MutableGraphArgument = structure(
    "MutableGraphArgument", ("commandId", U64), ("argIndex", U32), ("pArgValue", PTR)
)
SysmanProperties = structure(
    "SysmanProperties",
    ("core", DeviceProperties),
    ("numSubdevices", U32),
    ("serial", c_char * 64),
    ("board", c_char * 64),
    ("brand_name", c_char * 64),
    ("model_name", c_char * 64),
    ("vendor_name", c_char * 64),
    ("driver_version", c_char * 64),
)


class ExtensionProperties(ctypes.Structure):
    """`ze_driver_extension_properties_t`."""

    _fields_ = (("name", c_char * 256), ("version", U32))


class CopyRegion(ctypes.Structure):
    """`ze_copy_region_t`."""

    _fields_ = tuple((name, U32) for name in ("x", "y", "z", "width", "height", "depth"))


class EngineStats(ctypes.Structure):
    """`zes_engine_stats_t`."""

    _fields_ = (("activeTime", U64), ("timestamp", U64))


# ---------------------------------------------------------------- graphs

DeviceGraphProperties2 = structure(
    "DeviceGraphProperties2",
    ("graph_extension_version", U32),
    ("compiler_major", c_uint16),
    ("compiler_minor", c_uint16),
    ("graph_format", U32),
    ("max_opset_version", U32),
    ("elf_version", U32 * 3),
    ("runtime_version", U32 * 3),
)
GraphDesc = structure(
    "GraphDesc",
    ("format", U32),
    ("inputSize", SIZE),
    ("pInput", PTR),
    ("pBuildFlags", c_char_p),
    ("flags", U32),
)
InputHash = structure("InputHash", ("hash", U64))
GraphProperties = structure("GraphProperties", ("num_arguments", U32), ("init_stage", U32), ("flags", U32))
ArgumentProperties = structure(
    "ArgumentProperties",
    ("name", c_char * 256),
    ("type", U32),
    ("dims", U32 * 5),
    ("network_precision", U32),
    ("network_layout", U32),
    ("device_precision", U32),
    ("device_layout", U32),
    ("quant_reverse_scale", c_float),
    ("quant_zero_point", c_uint8),
    ("dims_count", U32),
    ("debug_friendly_name", c_char * 256),
    ("associated_tensor_names", (c_char * 256) * 32),
    ("associated_tensor_names_count", U32),
)
PropertyStrides = structure("PropertyStrides", ("supports", c_uint8))
ArgumentMetadata = structure(
    "ArgumentMetadata",
    ("type", U32),
    ("friendly_name", c_char * 256),
    ("data_type", U32),
    ("shape", U64 * 8),
    ("shape_size", U32),
    ("tensor_names", (c_char * 256) * 32),
    ("tensor_names_count", U32),
    ("input_name", c_char * 256),
)
TensorValue = structure("TensorValue", ("pTensor", PTR))
StridesValue = structure("StridesValue", ("strides", U32 * 5))
ProfilingProperties = structure("ProfilingProperties", ("version", U32))


class MemoryQuery(ctypes.Structure):
    """`ze_graph_memory_query_t`."""

    _fields_ = (("total", U64), ("allocated", U64))


RequirementsGraphDesc = structure("RequirementsGraphDesc", ("requirementsSrc", c_void_p))
RequirementsOutput = structure("RequirementsOutput", ("result", c_uint32))
GRAPH_FUNCTIONS = names(
    "Create Destroy GetProperties GetArgumentProperties SetArgumentValue AppendGraphInitialize "
    "AppendGraphExecute GetNativeBinary DeviceGetGraphProperties GraphGetArgumentMetadata "
    "GetArgumentProperties2 GetArgumentProperties3 QueryNetworkCreate QueryNetworkDestroy "
    "QueryNetworkGetSupportedLayers BuildLogGetString Create2 QueryNetworkCreate2 QueryContextMemory "
    "DeviceGetGraphProperties2 GetNativeBinary2 GetProperties2 GraphInitialize "
    "CompilerGetSupportedOptions CompilerIsOptionSupported Create3 GetProperties3 BuildLogGetString2 "
    "BuildLogDestroy SetArgumentValue2 Evict"
)
PROFILING_FUNCTIONS = names(
    "ProfilingPoolCreate ProfilingPoolDestroy ProfilingQueryCreate ProfilingQueryDestroy "
    "ProfilingQueryGetData DeviceGetProfilingDataProperties ProfilingLogGetString"
)
_PROTOTYPE = ctypes.CFUNCTYPE(_RESTYPE)


class Table:
    """The functions of an extension, by the names of their slots without `pfn`."""

    def __init__(self, address: int, names: list[str]) -> None:
        slots = (c_void_p * len(names)).from_address(address)
        self._functions = {name: _PROTOTYPE(slot) for name, slot in zip(names, slots, strict=True)}

    def __getattr__(self, name: str) -> Any:
        return self._functions[name]
