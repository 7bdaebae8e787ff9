"""Copies, fills, regions and timestamps, and the events of a command (facts 1.4, 7.5)."""

from __future__ import annotations

import struct

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import CopyRegion
from tests.conformance.rig import BRIEF, Rig, ok

MEGABYTE = 1 << 20


@pytest.mark.parametrize("size", [1, 7, 8, 63, 4096, 4097, 100_003])
def test_copy_moves_every_byte(rig: Rig, size: int) -> None:
    data = bytes(at * 7 % 256 for at in range(size))
    source, target = rig.data(data), rig.host(size + 16, fill=b"\xee")
    rig.run_copy(target + 8, source, size)
    assert rig.api.read(target, size + 16) == b"\xee" * 8 + data + b"\xee" * 8


def test_copy_larger_than_a_descriptor_moves_every_byte(rig: Rig) -> None:
    size = 17 * MEGABYTE + 5
    data = b"".join(struct.pack("<I", at) for at in range(size // 4 + 1))[:size]
    source, target = rig.data(data), rig.host(size)
    rig.run_copy(target, source, size)
    assert rig.api.read(target, size) == data


def test_copy_of_nothing_changes_nothing(rig: Rig) -> None:
    target = rig.host(8, fill=b"\x01")
    rig.run_copy(target, rig.host(8), 0)
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_copy_takes_interior_pointers(rig: Rig) -> None:
    source, target = rig.data(bytes(range(100))), rig.host(100)
    rig.run_copy(target + 31, source + 17, 20)
    assert rig.api.read(target, 100) == bytes(31) + bytes(range(17, 37)) + bytes(49)


def test_copy_inside_one_allocation(rig: Rig) -> None:
    memory = rig.data(bytes(range(100)))
    rig.run_copy(memory + 50, memory, 50)
    assert rig.api.read(memory, 100) == bytes(range(50)) * 2


def test_copy_takes_the_bytes_of_the_time_when_it_runs(rig: Rig) -> None:
    source, target, queue = rig.data(b"before.."), rig.host(8), rig.queue()
    copy = rig.copy_list(target, source, 8)
    rig.api.write(source, b"after...")
    rig.submit(queue, copy)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"after..."


@pytest.mark.parametrize("pattern", [b"\x5a", b"\x01\x02", b"\x01\x02\x03\x04"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_fill_repeats_its_pattern(rig: Rig, pattern: bytes, offset: int) -> None:
    target, command_list = rig.host(80), rig.command_list()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target + offset, pattern, 64))
    rig.run(command_list)
    expected = bytes(offset) + pattern * (64 // len(pattern)) + bytes(16 - offset)
    assert rig.api.read(target, 80) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 63])
@pytest.mark.parametrize("pattern", [b"\x01\x02", b"\x01\x02\x03\x04"])
def test_size_of_a_fill_need_not_be_a_multiple_of_its_pattern(rig: Rig, pattern: bytes, size: int) -> None:
    target, command_list = rig.host(80), rig.command_list()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, pattern, size))
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target + size, b"\xff", 1))
    rig.run(command_list)
    assert rig.api.read(target, 80) == (pattern * 32)[:size] + b"\xff" + bytes(79 - size)


def test_large_fill_reaches_the_end(rig: Rig) -> None:
    size, command_list = 17 * MEGABYTE + 3, rig.command_list()
    target = rig.host(size)
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x01\x02\x03\x04", size))
    rig.run(command_list)
    assert rig.api.read(target, size) == (b"\x01\x02\x03\x04" * (size // 4 + 1))[:size]


def test_fill_of_nothing_changes_nothing(rig: Rig) -> None:
    target, command_list = rig.host(8), rig.command_list()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\xff", 0))
    rig.run(command_list)
    assert rig.api.read(target, 8) == bytes(8)


def test_fill_does_not_keep_the_callers_pattern(rig: Rig) -> None:
    target, command_list = rig.host(8), rig.command_list()
    pattern = bytearray(b"\x07")
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, bytes(pattern), 8))
    pattern[0] = 0xFF
    rig.run(command_list)
    assert rig.api.read(target, 8) == b"\x07" * 8


def test_region_copies_rows_between_different_pitches(rig: Rig) -> None:
    source, target, command_list = rig.data(bytes(range(64))), rig.host(40), rig.command_list()
    result = rig.api.ze_command_list_append_memory_copy_region(
        command_list,
        target,
        CopyRegion(width=3, height=4),
        10,
        0,
        source,
        CopyRegion(width=3, height=4),
        16,
        0,
    )
    ok(result)
    rig.run(command_list)
    rows = [bytes(range(row * 16, row * 16 + 3)) + bytes(7) for row in range(4)]
    assert rig.api.read(target, 40) == b"".join(rows)


def test_region_starts_at_its_origin(rig: Rig) -> None:
    source, target, command_list = rig.data(bytes(range(64))), rig.host(64), rig.command_list()
    result = rig.api.ze_command_list_append_memory_copy_region(
        command_list,
        target,
        CopyRegion(origin_x=2, origin_y=1, width=3, height=2),
        8,
        0,
        source,
        CopyRegion(origin_x=4, origin_y=3, width=3, height=2),
        8,
        0,
    )
    ok(result)
    rig.run(command_list)
    expected = bytearray(64)
    expected[10:13] = bytes(range(28, 31))
    expected[18:21] = bytes(range(36, 39))
    assert rig.api.read(target, 64) == bytes(expected)


def test_timestamp_is_written_at_its_place(rig: Rig) -> None:
    memory, command_list = rig.host(24, fill=b"\xaa"), rig.command_list()
    ok(rig.api.ze_command_list_append_write_global_timestamp(command_list, memory + 8))
    rig.run(command_list)
    left, stamp, right = struct.unpack("<QQQ", rig.api.read(memory, 24))
    assert left == right == int.from_bytes(b"\xaa" * 8, "little")
    assert stamp not in (0, left)


def test_timestamps_of_one_list_go_forward(rig: Rig) -> None:
    memory, command_list = rig.host(24), rig.command_list()
    block = rig.host(4 * MEGABYTE)
    for at in (0, 8, 16):
        ok(rig.api.ze_command_list_append_write_global_timestamp(command_list, memory + at))
        ok(rig.api.ze_command_list_append_barrier(command_list))
        ok(rig.api.ze_command_list_append_memory_fill(command_list, block, b"\x01", 4 * MEGABYTE))
        ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.run(command_list)
    first, second, third = struct.unpack("<QQQ", rig.api.read(memory, 24))
    assert first < second < third


def test_timestamp_is_on_the_clock_of_the_device(rig: Rig) -> None:
    memory, command_list = rig.host(8), rig.command_list()
    ok(rig.api.ze_command_list_append_write_global_timestamp(command_list, memory))
    before = rig.api.ze_device_get_global_timestamps(rig.device).get().device
    rig.run(command_list)
    after = rig.api.ze_device_get_global_timestamps(rig.device).get().device
    (stamp,) = struct.unpack("<Q", rig.api.read(memory, 8))
    assert before <= stamp <= after


# ---------------------------------------------------------------- the events of a command


class Command:
    """One kind of append, with valid arguments."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig = rig
        self._name = name
        self._memory = rig.host(64)

    def append(
        self, command_list: object, signal: object, count: int, waits: list[object] | None
    ) -> ZeResult:
        api, memory = self._rig.api, self._memory
        events = (signal, count, waits)
        match self._name:
            case "barrier":
                return api.ze_command_list_append_barrier(command_list, *events)
            case "copy":
                return api.ze_command_list_append_memory_copy(command_list, memory, memory + 32, 8, *events)
            case "fill":
                return api.ze_command_list_append_memory_fill(command_list, memory, b"\x01", 8, *events)
            case "region":
                region = CopyRegion(width=4, height=2)
                sides = (memory, region, 4, 0, memory + 32, region, 4, 0)
                return api.ze_command_list_append_memory_copy_region(command_list, *sides, *events)
            case _:
                return api.ze_command_list_append_write_global_timestamp(command_list, memory, *events)


COMMANDS = ("barrier", "copy", "fill", "region", "timestamp")


@pytest.mark.parametrize("name", COMMANDS)
def test_command_signals_its_event_when_it_has_run(rig: Rig, name: str) -> None:
    event, command_list = rig.event(), rig.command_list()
    ok(Command(rig, name).append(command_list, event, 0, None))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY
    rig.run(command_list)
    ok(rig.api.ze_event_query_status(event))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_waits_for_its_events(rig: Rig, name: str) -> None:
    first, second, done, queue = rig.event(), rig.event(), rig.event(), rig.queue()
    command_list = rig.command_list()
    ok(Command(rig, name).append(command_list, done, 2, [first, second]))
    rig.close(command_list)
    rig.submit(queue, command_list)
    ok(rig.api.ze_event_host_signal(first))
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    assert rig.api.ze_event_query_status(done) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(second))
    rig.finish(queue)
    ok(rig.api.ze_event_query_status(done))


@pytest.mark.parametrize("name", COMMANDS)
def test_waits_without_an_array_are_an_invalid_size(rig: Rig, name: str) -> None:
    result = Command(rig, name).append(rig.command_list(), None, 1, None)
    assert result == ZeResult.ERROR_INVALID_SIZE


@pytest.mark.parametrize("name", COMMANDS)
def test_null_wait_event_is_refused(rig: Rig, name: str) -> None:
    result = Command(rig, name).append(rig.command_list(), None, 1, [None])
    assert result in (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER)
