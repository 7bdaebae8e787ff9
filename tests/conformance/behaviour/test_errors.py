"""The table of arguments and results, except the nulls of `test_arguments.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ExternalMemory, MutableFlag, QueueMode, QueueOption
from tests.conformance.api.structures import (
    CommandListDesc,
    CommandQueueDesc,
    CopyRegion,
    DeviceMemDesc,
    HostMemDesc,
    MutableCommandIdDesc,
)
from tests.conformance.commands import Append, barrier, copy, copy_region, fill, timestamp
from tests.conformance.rig import Rig

pytestmark = pytest.mark.quick

UNTRACKED = 0x1000
"""An address that no driver returns."""


def _alloc(rig: Rig, kind: str, size: int, alignment: int = 0) -> ZeResult:
    api, device, host = rig.api, DeviceMemDesc(), HostMemDesc()
    match kind:
        case "host":
            return api.ze_mem_alloc_host(rig.context, host, size, alignment).result
        case "device":
            return api.ze_mem_alloc_device(rig.context, device, size, alignment, rig.device).result
        case _:
            return api.ze_mem_alloc_shared(rig.context, device, host, size, alignment, rig.device).result


def _export(rig: Rig, kind: int) -> ZeResult:
    return rig.api.ze_mem_alloc_device(rig.context, DeviceMemDesc(export=kind), 64, 0, rig.device).result


def _queue(rig: Rig, desc: CommandQueueDesc) -> ZeResult:
    return rig.api.ze_command_queue_create(rig.context, rig.device, desc).result


def _append(rig: Rig, command: Append) -> ZeResult:
    return command(rig.api, rig.command_list())


def _region(rig: Rig, target: CopyRegion | None, source: CopyRegion | None, slice_pitch: int = 0) -> ZeResult:
    memory = rig.host(256)
    sides = (memory, target, 8), (memory + 128, source, 8)
    return _append(rig, copy_region(*sides, slice_pitch=slice_pitch))


def _wait(rig: Rig, count: int, given: bool) -> ZeResult:
    events = [rig.event()] if given else None
    return rig.api.ze_command_list_append_wait_on_events(rig.command_list(), count, events)


def _next_id_of_a_plain_list(rig: Rig) -> ZeResult:
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    return rig.api.ze_command_list_get_next_command_id_exp(rig.command_list(), desc).result


FLAT = CopyRegion(width=4, height=2)
TABLE: dict[ZeResult, dict[str, Callable[[Rig], ZeResult]]] = {
    ZeResult.SUCCESS: {
        "range interior pointer": lambda rig: (
            rig.api.ze_mem_get_address_range(rig.context, rig.host(64) + 63).result
        ),
        "copy beyond the end": lambda rig: _append(rig, copy(rig.host(64), rig.host(64), 8000)),
        "copy size 0": lambda rig: _append(rig, copy(rig.host(64), rig.host(64), 0)),
    },
    ZeResult.ERROR_UNSUPPORTED_SIZE: {
        "alloc host size 0": lambda rig: _alloc(rig, "host", 0),
        "alloc device size 0": lambda rig: _alloc(rig, "device", 0),
        "alloc shared size 0": lambda rig: _alloc(rig, "shared", 0),
    },
    ZeResult.ERROR_UNSUPPORTED_ALIGNMENT: {
        "alloc host alignment 3": lambda rig: _alloc(rig, "host", 64, 3),
        "alloc device alignment 48": lambda rig: _alloc(rig, "device", 64, 48),
        "alloc shared alignment 4095": lambda rig: _alloc(rig, "shared", 64, 4095),
    },
    ZeResult.ERROR_INVALID_ARGUMENT: {
        "free null pointer": lambda rig: rig.api.ze_mem_free(rig.context, 0),
        "free interior pointer": lambda rig: rig.api.ze_mem_free(rig.context, rig.host(64) + 8),
        "free other context's pointer": lambda rig: rig.api.ze_mem_free(
            rig.context, rig.host(64, rig.new_context())
        ),
        "free untracked pointer": lambda rig: rig.api.ze_mem_free(rig.context, UNTRACKED),
        "next command id of a plain list": _next_id_of_a_plain_list,
        "queue of another ordinal": lambda rig: _queue(rig, CommandQueueDesc(ordinal=1)),
        "list of another ordinal": lambda rig: (
            rig.api.ze_command_list_create(rig.context, rig.device, CommandListDesc(ordinal=1)).result
        ),
        "immediate list of another ordinal": lambda rig: (
            rig.api.ze_command_list_create_immediate(
                rig.context, rig.device, CommandQueueDesc(ordinal=1)
            ).result
        ),
    },
    ZeResult.ERROR_INVALID_ENUMERATION: {
        "export of another type": lambda rig: _export(rig, ExternalMemory.OPAQUE_FD),
        "device sync of a synchronous queue": lambda rig: _queue(
            rig, CommandQueueDesc(mode=QueueMode.SYNCHRONOUS, options=QueueOption.DEVICE_SYNC)
        ),
    },
    ZeResult.ERROR_NOT_AVAILABLE: {
        "properties unknown pointer": lambda rig: (
            rig.api.ze_mem_get_alloc_properties(rig.context, UNTRACKED).result
        ),
        "range unknown pointer": lambda rig: rig.api.ze_mem_get_address_range(rig.context, UNTRACKED).result,
    },
    ZeResult.ERROR_UNINITIALIZED: {
        "copy untracked target": lambda rig: _append(rig, copy(UNTRACKED, rig.host(64), 8)),
        "copy untracked source": lambda rig: _append(rig, copy(rig.host(64), UNTRACKED, 8)),
        "fill past the end": lambda rig: _append(rig, fill(rig.host(64), b"\x01", 65)),
    },
    ZeResult.ERROR_OUT_OF_DEVICE_MEMORY: {
        "fill untracked": lambda rig: _append(rig, fill(UNTRACKED, b"\x01", 24)),
        "timestamp untracked": lambda rig: _append(rig, timestamp(UNTRACKED)),
    },
    ZeResult.ERROR_UNSUPPORTED_FEATURE: {
        "region slice pitch": lambda rig: _region(rig, FLAT, FLAT, slice_pitch=1),
        "region depth 2": lambda rig: _region(rig, FLAT._replace(depth=2), FLAT._replace(depth=2)),
        "region depth 0": lambda rig: _region(rig, FLAT._replace(depth=0), FLAT._replace(depth=0)),
    },
    ZeResult.ERROR_INVALID_SIZE: {
        "region zero width": lambda rig: _region(rig, FLAT._replace(width=0), FLAT._replace(width=0)),
        "region width mismatch": lambda rig: _region(rig, FLAT, FLAT._replace(width=5)),
        "region height mismatch": lambda rig: _region(rig, FLAT, FLAT._replace(height=3)),
        "fill pattern of 3 bytes": lambda rig: _append(rig, fill(rig.host(64), b"abc", 24)),
        "fill pattern of 8 bytes": lambda rig: _append(rig, fill(rig.host(64), b"abcdefgh", 24)),
        "fill pattern of 0 bytes": lambda rig: _append(rig, fill(rig.host(64), b"", 24)),
        "wait in a command, count without array": lambda rig: _append(rig, barrier(None, 1, None)),
        "wait on events, array without count": lambda rig: _wait(rig, 0, True),
    },
    ZeResult.ERROR_INVALID_NULL_POINTER: {
        "region null target": lambda rig: _region(rig, None, FLAT),
        "region null source": lambda rig: _region(rig, FLAT, None),
        "wait on events, count without array": lambda rig: _wait(rig, 1, False),
    },
}


def test_calls_have_their_documented_results(rig: Rig) -> None:
    found = {}
    for expected, calls in TABLE.items():
        for name, call in calls.items():
            result = call(rig)
            if result != expected:
                found[name] = (result, expected)
            rig.check_works()
    assert found == {}
