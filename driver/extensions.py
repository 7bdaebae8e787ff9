"""The driver's extensions and their functions, by their real names and versions.

Tables only grow at the end: a program built for version 1.8 uses a prefix of the table of 1.17.
"""

from __future__ import annotations

from softnpu.driver.errors import invalid_argument
from softnpu.driver.properties import ExtensionProperties, Record


class ExtensionTable(Record, frozen=True, kw_only=True):
    """The function table of an extension: function names in table order."""

    name: str
    version: int
    functions: tuple[str, ...]


def version(major: int, minor: int) -> int:
    """Return a version number, encoded like `ZE_MAKE_VERSION`."""
    return major << 16 | minor


GRAPH_FUNCTIONS = (
    "pfnCreate",
    "pfnDestroy",
    "pfnGetProperties",
    "pfnGetArgumentProperties",
    "pfnSetArgumentValue",
    "pfnAppendGraphInitialize",
    "pfnAppendGraphExecute",
    "pfnGetNativeBinary",
    "pfnDeviceGetGraphProperties",
    "pfnGraphGetArgumentMetadata",
    "pfnGetArgumentProperties2",
    "pfnGetArgumentProperties3",
    "pfnQueryNetworkCreate",
    "pfnQueryNetworkDestroy",
    "pfnQueryNetworkGetSupportedLayers",
    "pfnBuildLogGetString",
    "pfnCreate2",
    "pfnQueryNetworkCreate2",
    "pfnQueryContextMemory",
    "pfnDeviceGetGraphProperties2",
    "pfnGetNativeBinary2",
    "pfnGetProperties2",
    "pfnGraphInitialize",
    "pfnCompilerGetSupportedOptions",
    "pfnCompilerIsOptionSupported",
    "pfnCreate3",
    "pfnGetProperties3",
    "pfnBuildLogGetString2",
    "pfnBuildLogDestroy",
    "pfnSetArgumentValue2",
    "pfnEvict",
)

PROFILING_VERSION = version(1, 0)

_TABLES = (
    ExtensionTable(name="ZE_extension_graph", version=version(1, 17), functions=GRAPH_FUNCTIONS),
    ExtensionTable(
        name="ZE_extension_profiling_data",
        version=PROFILING_VERSION,
        functions=(
            "pfnProfilingPoolCreate",
            "pfnProfilingPoolDestroy",
            "pfnProfilingQueryCreate",
            "pfnProfilingQueryDestroy",
            "pfnProfilingQueryGetData",
            "pfnDeviceGetProfilingDataProperties",
            "pfnProfilingLogGetString",
        ),
    ),
    ExtensionTable(
        name="ZE_extension_command_queue_npu", version=version(1, 1), functions=("pfnSetWorkloadType",)
    ),
    ExtensionTable(
        name="ZE_extension_context_npu",
        version=version(1, 0),
        functions=("pfnSetProperties", "pfnReleaseMemory"),
    ),
    ExtensionTable(name="ZE_extension_driver_npu", version=version(1, 0), functions=("pfnGetExtension",)),
    ExtensionTable(name="ZE_experimental_mutable_command_list", version=version(1, 1), functions=()),
    ExtensionTable(name="ZE_extension_external_memmap_sysmem", version=version(1, 0), functions=()),
    ExtensionTable(
        name="ZE_extension_device_npu",
        version=version(1, 0),
        functions=(
            "pfnGetRuntimeRequirements",
            "pfnGetRuntimeRequirementsKey",
            "pfnValidateRuntimeRequirements",
        ),
    ),
)
PRIVATE_FUNCTIONS = (
    "zexDiskCacheSetSize",
    "zexDiskCacheGetSize",
    "zexDiskCacheGetDirectory",
    "zexContextSetIdlePruningTimeout",
)
"""Functions used by the real driver's own tools and tests; found by name, not listed."""

_BY_NAME = {table.name: table for table in _TABLES}
_GRAPH_ALIASES = tuple(f"ZE_extension_graph_1_{minor}" for minor in range(2, 9))


def extension_properties() -> list[ExtensionProperties]:
    """Return the list of `zeDriverGetExtensionProperties`, including aliases of the graph extension."""
    aliases = [
        ExtensionProperties(name=name, version=version(1, int(name.rpartition("_")[2])))
        for name in _GRAPH_ALIASES
    ]
    return [ExtensionProperties(name=table.name, version=table.version) for table in _TABLES] + aliases


def function_address(name: str) -> ExtensionTable:
    """Return the table of an extension, as `zeDriverGetExtensionFunctionAddress` does.

    A name that contains the graph extension's name means it. A private function has its own table.

    Raises `ZeError` with ERROR_INVALID_ARGUMENT for an unknown name.
    """
    if name in PRIVATE_FUNCTIONS:
        return ExtensionTable(name=name, version=version(1, 0), functions=(name,))
    key = "ZE_extension_graph" if "ZE_extension_graph" in name else name
    table = _BY_NAME.get(key)
    if table is None:
        raise invalid_argument(
            "zeDriverGetExtensionFunctionAddress",
            "extension",
            found=repr(name),
            expected=" or ".join(_BY_NAME),
        )
    return table
