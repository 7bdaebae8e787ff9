"""Functions that the device does not have answer UNSUPPORTED_FEATURE (facts 2.2)."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle
from tests.conformance.rig import Rig

FUNCTIONS = {
    "list": (
        "zeCommandListAppendMemoryPrefetch",
        "zeCommandListAppendMemAdvise",
        "zeCommandListAppendMemoryRangesBarrier",
        "zeCommandListAppendImageCopy",
        "zeCommandListAppendImageCopyRegion",
        "zeCommandListAppendImageCopyToMemory",
        "zeCommandListAppendImageCopyFromMemory",
        "zeCommandListAppendMemoryCopyFromContext",
        "zeCommandListAppendQueryKernelTimestamps",
    ),
    "immediate list": ("zeCommandListImmediateGetIndex",),
    "event": ("zeEventQueryKernelTimestamp",),
    "event pool": ("zeEventPoolGetIpcHandle",),
    "context": (
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
    ),
    "device": (
        "zeDeviceCanAccessPeer",
        "zeDeviceGetCacheProperties",
        "zeDeviceGetModuleProperties",
        "zesDeviceEnumPowerDomains",
        "zesDeviceEnumFrequencyDomains",
    ),
}
CASES = [(kind, function) for kind, functions in FUNCTIONS.items() for function in functions]


def handle_for(rig: Rig, kind: str) -> Handle:
    """A live object of this kind."""
    match kind:
        case "list":
            return rig.command_list()
        case "immediate list":
            return rig.immediate()
        case "event":
            return rig.event()
        case "event pool":
            return rig.pool(1)
        case "context":
            return rig.context
        case _:
            return rig.device


@pytest.mark.parametrize(("kind", "function"), CASES, ids=[function for _, function in CASES])
def test_function_is_an_unsupported_feature(rig: Rig, kind: str, function: str) -> None:
    assert rig.api.call_unsupported(function, handle_for(rig, kind)) == ZeResult.ERROR_UNSUPPORTED_FEATURE
