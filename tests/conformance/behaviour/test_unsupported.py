"""Functions that the device lacks return UNSUPPORTED_FEATURE."""

from __future__ import annotations

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.rig import Rig

LIST = (
    "zeCommandListAppendMemoryPrefetch",
    "zeCommandListAppendMemAdvise",
    "zeCommandListAppendMemoryRangesBarrier",
    "zeCommandListAppendImageCopy",
    "zeCommandListAppendImageCopyRegion",
    "zeCommandListAppendImageCopyToMemory",
    "zeCommandListAppendImageCopyFromMemory",
    "zeCommandListAppendMemoryCopyFromContext",
    "zeCommandListAppendQueryKernelTimestamps",
)
CONTEXT = (
    "zeEventPoolOpenIpcHandle",
    "zeMemGetIpcHandle",
    "zeMemOpenIpcHandle",
    "zeMemCloseIpcHandle",
    "zeContextMakeMemoryResident",
    "zeContextEvictMemory",
    "zeContextSystemBarrier",
    "zeContextMakeImageResident",
    "zeContextEvictImage",
    "zeVirtualMemReserve",
    "zeVirtualMemFree",
    "zeVirtualMemQueryPageSize",
    "zePhysicalMemCreate",
)
DEVICE = (
    "zeDeviceCanAccessPeer",
    "zeDeviceGetCacheProperties",
    "zeDeviceGetModuleProperties",
    "zesDeviceEnumPowerDomains",
    "zesDeviceEnumFrequencyDomains",
)


def test_functions_are_an_unsupported_feature(rig: Rig) -> None:
    functions = (
        (rig.command_list(), LIST),
        (rig.immediate(), ["zeCommandListImmediateGetIndex"]),
        (rig.event(), ["zeEventQueryKernelTimestamp"]),
        (rig.pool(1), ["zeEventPoolGetIpcHandle"]),
        (rig.context, CONTEXT),
        (rig.device, DEVICE),
    )
    found = {name: rig.api.call_unsupported(name, handle) for handle, names in functions for name in names}
    assert found == dict.fromkeys(found, ZeResult.ERROR_UNSUPPORTED_FEATURE)
