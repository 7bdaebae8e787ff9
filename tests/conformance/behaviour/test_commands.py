"""Copies, fills, regions and timestamps, and a command's events."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import CopyRegion, Pointer
from tests.conformance.commands import Append, after, barrier, copy, copy_region, fill, timestamp
from tests.conformance.rig import Rig, ok

MEGABYTE = 1 << 20


def test_copy_moves_every_byte(rig: Rig) -> None:
    for size in (0, 1, 7, 8, 63, 4096, 4097, 100_003):
        data = bytes(at * 7 % 256 for at in range(size))
        source, target = rig.data(data or b"\0"), rig.host(size + 16, fill=b"\xee")
        rig.execute(copy(target + 8, source, size))
        assert rig.api.read(target, size + 16) == b"\xee" * 8 + data + b"\xee" * 8, size


def test_copy_and_fill_larger_than_a_descriptor_reach_the_end(rig: Rig) -> None:
    size = 17 * MEGABYTE + 4
    data = random.Random(17).randbytes(size)
    source, target = rig.data(data), rig.host(size)
    rig.execute(copy(target, source, size))
    assert rig.api.read(target, size) == data
    rig.execute(fill(target, b"\x01\x02\x03\x04", size - 1))
    assert rig.api.read(target, size) == b"\x01\x02\x03\x04" * (size // 4 - 1) + b"\x01\x02\x03" + data[-1:]


def test_copy_takes_interior_pointers(rig: Rig) -> None:
    source, target = rig.data(bytes(range(100))), rig.host(100)
    rig.execute(copy(target + 31, source + 17, 20))
    assert rig.api.read(target, 100) == bytes(31) + bytes(range(17, 37)) + bytes(49)


def test_copy_inside_one_allocation(rig: Rig) -> None:
    memory = rig.data(bytes(range(100)))
    rig.execute(copy(memory + 50, memory, 50))
    assert rig.api.read(memory, 100) == bytes(range(50)) * 2


def test_copy_takes_the_bytes_of_the_time_when_it_runs(rig: Rig) -> None:
    source, target, queue = rig.data(b"before.."), rig.host(8), rig.queue()
    closed = rig.copy_list(target, source, 8)
    rig.api.write(source, b"after...")
    rig.submit(queue, closed)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"after..."


def test_fill_repeats_its_pattern(rig: Rig) -> None:
    for pattern in (b"\x5a", b"\x01\x02", b"\x01\x02\x03\x04"):
        for offset in (0, 1, 3):
            target = rig.host(80)
            rig.execute(fill(target + offset, pattern, 64), fill(target + 70, b"\xff", 0))
            expected = bytes(offset) + pattern * (64 // len(pattern)) + bytes(16 - offset)
            assert rig.api.read(target, 80) == expected, (pattern, offset)


def test_size_of_a_fill_need_not_be_a_multiple_of_its_pattern(rig: Rig) -> None:
    for pattern in (b"\x01\x02", b"\x01\x02\x03\x04"):
        for size in (1, 2, 3, 5, 7, 63):
            target = rig.host(80)
            rig.execute(fill(target, pattern, size), fill(target + size, b"\xff", 1))
            assert rig.api.read(target, 80) == (pattern * 32)[:size] + b"\xff" + bytes(79 - size), size


def test_fill_does_not_keep_the_callers_pattern(rig: Rig) -> None:
    target, command_list = rig.host(8), rig.command_list()
    pattern = bytearray(b"\x07")
    rig.append(command_list, fill(target, bytes(pattern), 8))
    pattern[0] = 0xFF
    rig.run(command_list)
    assert rig.api.read(target, 8) == b"\x07" * 8


def test_region_copies_rows_between_different_pitches(rig: Rig) -> None:
    source, target, region = rig.data(bytes(range(64))), rig.host(40), CopyRegion(width=3, height=4)
    rig.execute(copy_region((target, region, 10), (source, region, 16)))
    rows = [bytes(range(row * 16, row * 16 + 3)) + bytes(7) for row in range(4)]
    assert rig.api.read(target, 40) == b"".join(rows)


def test_region_starts_at_its_origin(rig: Rig) -> None:
    source, target = rig.data(bytes(range(64))), rig.host(64)
    to = CopyRegion(origin_x=2, origin_y=1, width=3, height=2)
    rig.execute(copy_region((target, to, 8), (source, to._replace(origin_x=4, origin_y=3), 8)))
    expected = bytearray(64)
    expected[10:13] = bytes(range(28, 31))
    expected[18:21] = bytes(range(36, 39))
    assert rig.api.read(target, 64) == bytes(expected)


def test_region_without_rows_is_accepted_and_no_command(rig: Rig) -> None:
    source, target, region = rig.data(bytes(range(64))), rig.host(64, fill=b"\xee"), CopyRegion(width=3)
    rig.execute(copy_region((target, region._replace(height=0), 8), (source, region._replace(height=0), 8)))
    assert rig.api.read(target, 64) == b"\xee" * 64


def test_region_is_no_wider_than_the_pitch_of_its_target(rig: Rig) -> None:
    source, target = rig.data(bytes(range(64))), rig.host(64, fill=b"\xee")
    region, command_list = CopyRegion(width=4, height=2), rig.command_list()
    narrow = copy_region((target, region, 3), (source, region, 8))
    assert narrow(rig.api, command_list) == ZeResult.ERROR_INVALID_SIZE
    rig.execute(copy_region((target, region, 4), (source, region, 8)))
    assert rig.api.read(target, 9) == bytes([0, 1, 2, 3, 8, 9, 10, 11, 0xEE])


@pytest.mark.parametrize("pitch", [3, 1, 0])
def test_rows_of_the_source_may_overlap(rig: Rig, pitch: int) -> None:
    source, target, region = rig.data(bytes(range(64))), rig.host(20), CopyRegion(width=4, height=4)
    rig.execute(copy_region((target, region, 5), (source, region, pitch)))
    rows = [bytes(range(row * pitch, row * pitch + 4)) + bytes(1) for row in range(4)]
    assert rig.api.read(target, 20) == b"".join(rows)


def test_overlapping_rows_are_all_read_before_one_is_written(rig: Rig) -> None:
    memory, region = rig.data(bytes(range(64))), CopyRegion(width=4, height=3)
    rig.execute(copy_region((memory, region, 4), (memory + 1, region, 2)))
    assert rig.api.read(memory, 13) == bytes([1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8, 12])


def test_timestamp_is_written_at_its_place_on_the_clock_of_the_device(rig: Rig) -> None:
    memory, command_list = rig.host(24, fill=b"\xaa"), rig.command_list()
    rig.append(command_list, timestamp(memory + 8))
    before = rig.api.ze_device_get_global_timestamps(rig.device).get().device
    rig.run(command_list)
    after_it = rig.api.ze_device_get_global_timestamps(rig.device).get().device
    left, stamp, right = struct.unpack("<QQQ", rig.api.read(memory, 24))
    assert left == right == int.from_bytes(b"\xaa" * 8, "little")
    assert before <= stamp <= after_it


def test_timestamps_of_one_list_go_forward(rig: Rig) -> None:
    memory, block, command_list = rig.host(24), rig.host(4 * MEGABYTE), rig.command_list()
    for at in (0, 8, 16):
        work = fill(block, b"\x01", 4 * MEGABYTE)
        rig.append(command_list, timestamp(memory + at), barrier(), work, barrier())
    rig.run(command_list)
    first, second, third = struct.unpack("<QQQ", rig.api.read(memory, 24))
    assert first < second < third


# ---------------------------------------------------------------- a command's events


def _region(memory: Pointer, *events: Any) -> Append:
    region = CopyRegion(width=4, height=2)
    return copy_region((memory, region, 4), (memory + 32, region, 4), *events)


COMMANDS: dict[str, Callable[..., Append]] = {
    "barrier": lambda _memory, *events: barrier(*events),
    "copy": lambda memory, *events: copy(memory, memory + 32, 8, *events),
    "fill": lambda memory, *events: fill(memory, b"\x01", 8, *events),
    "region": _region,
    "timestamp": timestamp,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_waits_for_its_events_and_signals_another(rig: Rig, name: str) -> None:
    first, second, done, queue = rig.event(), rig.event(), rig.event(), rig.queue()
    command = COMMANDS[name](rig.host(64), *after(first, second, signal=done))
    rig.submit(queue, rig.recorded(command))
    rig.signal(first)
    rig.settle()
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    assert rig.api.ze_event_query_status(done) == ZeResult.NOT_READY
    rig.signal(second)
    rig.finish(queue)
    ok(rig.api.ze_event_query_status(done))


def test_wrong_wait_events_are_refused(rig: Rig) -> None:
    null = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER)
    for name, command in COMMANDS.items():
        memory, command_list = rig.host(64), rig.command_list()
        no_array = command(memory, None, 1, None)(rig.api, command_list)
        assert no_array == ZeResult.ERROR_INVALID_SIZE, name
        assert command(memory, None, 1, [None])(rig.api, command_list) in null, name
