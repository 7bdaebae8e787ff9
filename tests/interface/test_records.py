"""Fixed records in shared memory: frozen bytes. `test_document.py` checks offsets and numbers."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import StatusWord

pytestmark = pytest.mark.quick

_SLOT = bytes.fromhex(
    "0100000000000000 0807060504030002 0010000000000000 40010000 02000000"
    "0907060504030002 8000000000000000 0700000000000000 01000070 00000000"
)
_STATUS_HEADER = bytes.fromhex(
    "534e505553544154 01000000 02000000 d204000000000000 000064a7b3b6e00d 0500000000000000 07000000 00020000"
    "00100000" + "00" * 12
)


def test_a_slot_and_a_status_header_keep_their_bytes() -> None:
    slot = (1, 0x0200030405060708, 4096, 320, 2, 0x0200030405060709, 128, 7, 0x70000001, 0)
    assert records.SLOT.pack(*slot) == _SLOT
    assert records.SLOT.unpack(_SLOT) == slot
    numbers = (2, 1234, 1_000_000_000_000_000_000, 5, 7, 512, 4096)
    header = (records.STATUS_MAGIC, records.STATUS_VERSION, *numbers)
    assert records.STATUS_HEADER.pack(*header) == _STATUS_HEADER


def test_sizes_of_rings_and_status_pages() -> None:
    assert [records.ring_size(slots) for slots in (2, 4096)] == [640, 262656]
    assert [records.status_offset(device) for device in (0, 3)] == [64, 832]
    assert [records.status_size(devices) for devices in (1, 4)] == [1280, 4928]
    assert max(StatusWord) * 8 < records.STATUS_DEVICE_SIZE


def test_driver_and_engine_write_to_different_cache_lines() -> None:
    engine = {records.RING_COMPLETED, records.RING_RESULT, records.RING_TEXT}
    assert records.RING_TAIL // 64 not in {offset // 64 for offset in engine}
