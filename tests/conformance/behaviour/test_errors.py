"""The table of arguments and results (facts 7.5): one row, one case."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import MutableFlag
from tests.conformance.api.structures import (
    CommandListDesc,
    CommandQueueDesc,
    CopyRegion,
    DeviceMemDesc,
    HostMemDesc,
    MutableCommandIdDesc,
)
from tests.conformance.rig import Rig

pytestmark = pytest.mark.quick

UNTRACKED = 0x1000
"""An address that no driver gives out."""


class Row(NamedTuple):
    """A wrong call and its result."""

    name: str
    expected: ZeResult
    call: Callable[[Rig], ZeResult]


def _alloc(kind: str, size: int, alignment: int = 0) -> Callable[[Rig], ZeResult]:
    def call(rig: Rig) -> ZeResult:
        api, device = rig.api, rig.device
        match kind:
            case "host":
                return api.ze_mem_alloc_host(rig.context, HostMemDesc(), size, alignment).result
            case "device":
                desc = DeviceMemDesc()
                return api.ze_mem_alloc_device(rig.context, desc, size, alignment, device).result
            case _:
                made = api.ze_mem_alloc_shared(
                    rig.context, DeviceMemDesc(), HostMemDesc(), size, alignment, device
                )
                return made.result

    return call


def _free_in_the_wrong_context(rig: Rig) -> ZeResult:
    return rig.api.ze_mem_free(rig.context, rig.host(64, rig.new_context()))


def _copy(target: str, source: str, size: int = 8, times: int = 1) -> Callable[[Rig], ZeResult]:
    def call(rig: Rig) -> ZeResult:
        places = {"own": rig.host(64), "null": 0, "untracked": UNTRACKED}
        return rig.api.ze_command_list_append_memory_copy(
            rig.command_list(), places[target], places[source], size * times
        )

    return call


def _region(
    target: CopyRegion | None, source: CopyRegion | None, slice_pitch: int = 0
) -> Callable[[Rig], ZeResult]:
    def call(rig: Rig) -> ZeResult:
        memory = rig.host(256)
        return rig.api.ze_command_list_append_memory_copy_region(
            rig.command_list(), memory, target, 8, slice_pitch, memory + 128, source, 8, slice_pitch
        )

    return call


def _fill(place: str, pattern: bytes | None, size: int = 24) -> Callable[[Rig], ZeResult]:
    def call(rig: Rig) -> ZeResult:
        places = {"own": rig.host(64), "null": 0, "untracked": UNTRACKED}
        return rig.api.ze_command_list_append_memory_fill(rig.command_list(), places[place], pattern, size)

    return call


def _timestamp(pointer: int) -> Callable[[Rig], ZeResult]:
    return lambda rig: rig.api.ze_command_list_append_write_global_timestamp(rig.command_list(), pointer)


def _wait(count: int, given: bool) -> Callable[[Rig], ZeResult]:
    def call(rig: Rig) -> ZeResult:
        events = [rig.event()] if given else None
        return rig.api.ze_command_list_append_wait_on_events(rig.command_list(), count, events)

    return call


def _next_id_of_a_plain_list(rig: Rig) -> ZeResult:
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    return rig.api.ze_command_list_get_next_command_id_exp(rig.command_list(), desc).result


FLAT = CopyRegion(width=4, height=2)
ROWS = (
    Row("alloc host size 0", ZeResult.ERROR_UNSUPPORTED_SIZE, _alloc("host", 0)),
    Row("alloc device size 0", ZeResult.ERROR_UNSUPPORTED_SIZE, _alloc("device", 0)),
    Row("alloc shared size 0", ZeResult.ERROR_UNSUPPORTED_SIZE, _alloc("shared", 0)),
    Row("alloc host alignment 3", ZeResult.ERROR_UNSUPPORTED_ALIGNMENT, _alloc("host", 64, 3)),
    Row("alloc device alignment 48", ZeResult.ERROR_UNSUPPORTED_ALIGNMENT, _alloc("device", 64, 48)),
    Row("alloc shared alignment 4095", ZeResult.ERROR_UNSUPPORTED_ALIGNMENT, _alloc("shared", 64, 4095)),
    Row(
        "alloc null descriptor",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_mem_alloc_host(rig.context, None, 64).result,
    ),
    Row(
        "alloc null output",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), 64, out=False).result,
    ),
    Row(
        "alloc null context",
        ZeResult.ERROR_INVALID_NULL_HANDLE,
        lambda rig: rig.api.ze_mem_alloc_host(None, HostMemDesc(), 64).result,
    ),
    Row(
        "queue null descriptor",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_command_queue_create(rig.context, rig.device, None).result,
    ),
    Row(
        "queue null context",
        ZeResult.ERROR_INVALID_NULL_HANDLE,
        lambda rig: rig.api.ze_command_queue_create(None, rig.device, CommandQueueDesc()).result,
    ),
    Row(
        "list null device",
        ZeResult.ERROR_INVALID_NULL_HANDLE,
        lambda rig: rig.api.ze_command_list_create(rig.context, None, CommandListDesc()).result,
    ),
    Row(
        "free null pointer",
        ZeResult.ERROR_INVALID_ARGUMENT,
        lambda rig: rig.api.ze_mem_free(rig.context, 0),
    ),
    Row(
        "free interior pointer",
        ZeResult.ERROR_INVALID_ARGUMENT,
        lambda rig: rig.api.ze_mem_free(rig.context, rig.host(64) + 8),
    ),
    Row("free other context's pointer", ZeResult.ERROR_INVALID_ARGUMENT, _free_in_the_wrong_context),
    Row(
        "free untracked pointer",
        ZeResult.ERROR_INVALID_ARGUMENT,
        lambda rig: rig.api.ze_mem_free(rig.context, UNTRACKED),
    ),
    Row(
        "properties unknown pointer",
        ZeResult.ERROR_NOT_AVAILABLE,
        lambda rig: rig.api.ze_mem_get_alloc_properties(rig.context, UNTRACKED).result,
    ),
    Row(
        "properties null pointer",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_mem_get_alloc_properties(rig.context, 0).result,
    ),
    Row(
        "properties null output",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_mem_get_alloc_properties(rig.context, rig.host(8), out=False).result,
    ),
    Row(
        "range unknown pointer",
        ZeResult.ERROR_NOT_AVAILABLE,
        lambda rig: rig.api.ze_mem_get_address_range(rig.context, UNTRACKED).result,
    ),
    Row(
        "range null pointer",
        ZeResult.ERROR_INVALID_NULL_POINTER,
        lambda rig: rig.api.ze_mem_get_address_range(rig.context, 0).result,
    ),
    Row(
        "range interior pointer",
        ZeResult.SUCCESS,
        lambda rig: rig.api.ze_mem_get_address_range(rig.context, rig.host(64) + 63).result,
    ),
    Row("copy untracked target", ZeResult.ERROR_UNINITIALIZED, _copy("untracked", "own")),
    Row("copy untracked source", ZeResult.ERROR_UNINITIALIZED, _copy("own", "untracked")),
    Row("copy null target", ZeResult.ERROR_INVALID_NULL_POINTER, _copy("null", "own")),
    Row("copy null source", ZeResult.ERROR_INVALID_NULL_POINTER, _copy("own", "null")),
    Row("copy beyond the end", ZeResult.SUCCESS, _copy("own", "own", times=1000)),
    Row("copy size 0", ZeResult.SUCCESS, _copy("own", "own", size=0)),
    Row("region slice pitch", ZeResult.ERROR_UNSUPPORTED_FEATURE, _region(FLAT, FLAT, slice_pitch=1)),
    Row(
        "region depth 2",
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        _region(CopyRegion(width=4, height=2, depth=2), CopyRegion(width=4, height=2, depth=2)),
    ),
    Row(
        "region depth 0",
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        _region(CopyRegion(width=4, height=2, depth=0), CopyRegion(width=4, height=2, depth=0)),
    ),
    Row(
        "region zero width",
        ZeResult.ERROR_INVALID_SIZE,
        _region(CopyRegion(width=0, height=2), CopyRegion(width=0, height=2)),
    ),
    Row(
        "region width mismatch",
        ZeResult.ERROR_INVALID_SIZE,
        _region(CopyRegion(width=4, height=2), CopyRegion(width=5, height=2)),
    ),
    Row(
        "region height mismatch",
        ZeResult.ERROR_INVALID_SIZE,
        _region(CopyRegion(width=4, height=2), CopyRegion(width=4, height=3)),
    ),
    Row("region null target", ZeResult.ERROR_INVALID_NULL_POINTER, _region(None, FLAT)),
    Row("region null source", ZeResult.ERROR_INVALID_NULL_POINTER, _region(FLAT, None)),
    Row("fill pattern of 3 bytes", ZeResult.ERROR_INVALID_SIZE, _fill("own", b"abc")),
    Row("fill pattern of 8 bytes", ZeResult.ERROR_INVALID_SIZE, _fill("own", b"abcdefgh")),
    Row("fill pattern of 0 bytes", ZeResult.ERROR_INVALID_SIZE, _fill("own", b"")),
    Row("fill past the end", ZeResult.ERROR_UNINITIALIZED, _fill("own", b"\x01", size=65)),
    Row("fill untracked", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, _fill("untracked", b"\x01")),
    Row("fill null pointer", ZeResult.ERROR_INVALID_NULL_POINTER, _fill("null", b"\x01")),
    Row("fill null pattern", ZeResult.ERROR_INVALID_NULL_POINTER, _fill("own", None)),
    Row("timestamp untracked", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, _timestamp(UNTRACKED)),
    Row("timestamp null pointer", ZeResult.ERROR_INVALID_NULL_POINTER, _timestamp(0)),
    Row(
        "wait in a command, count without array",
        ZeResult.ERROR_INVALID_SIZE,
        lambda rig: rig.api.ze_command_list_append_barrier(rig.command_list(), None, 1, None),
    ),
    Row("wait on events, count without array", ZeResult.ERROR_INVALID_NULL_POINTER, _wait(1, False)),
    Row("wait on events, array without count", ZeResult.ERROR_INVALID_SIZE, _wait(0, True)),
    Row("next command id of a plain list", ZeResult.ERROR_INVALID_ARGUMENT, _next_id_of_a_plain_list),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_call_has_its_documented_result(rig: Rig, row: Row) -> None:
    assert row.call(rig) == row.expected
    target = rig.host(8)
    rig.run_copy(target, rig.data(b"works on"), 8)
    assert rig.api.read(target, 8) == b"works on"
