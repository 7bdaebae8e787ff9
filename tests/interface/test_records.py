"""Fixed records in shared memory: every offset and number as a literal."""

from __future__ import annotations

from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import DeviceState, EventState, StatusWord

_SLOT = bytes.fromhex(
    "0100000000000000 0807060504030002 0010000000000000 40010000 02000000"
    "0907060504030002 8000000000000000 0700000000000000 01000070 00000000"
)
_STATUS_HEADER = bytes.fromhex(
    "534e505553544154 01000000 02000000 d204000000000000 000064a7b3b6e00d"
    "0000000000000000000000000000000000000000000000000000000000000000"
)


def test_a_slot_keeps_its_bytes() -> None:
    fields = (1, 0x0200030405060708, 4096, 320, 2, 0x0200030405060709, 128, 7, 0x70000001, 0)
    assert records.SLOT.pack(*fields) == _SLOT
    assert records.SLOT.unpack(_SLOT) == fields


def test_a_slot_has_64_bytes() -> None:
    assert records.SLOT.size == records.SLOT_SIZE == 64


def test_offsets_of_fences_events_and_slots() -> None:
    prefixes = ("SIGNAL_", "FENCE_", "EVENT_", "SLOT_")
    assert {
        name: value
        for name, value in vars(records).items()
        if name.startswith(prefixes) and type(value) is int
    } == {
        "SIGNAL_SIZE": 64,
        "FENCE_SIGNALLED": 0,
        "FENCE_WAITERS": 8,
        "FENCE_RESULT": 12,
        "FENCE_ARMED": 16,
        "FENCE_CANCEL": 24,
        "FENCE_TIME": 32,
        "EVENT_STATE": 0,
        "EVENT_CHANGES": 4,
        "EVENT_WAITERS": 8,
        "EVENT_TIME": 32,
        "SLOT_SIZE": 64,
        "SLOT_TICKET": 48,
        "SLOT_RESULT": 56,
    }


def test_event_states() -> None:
    assert {state.name: state.value for state in EventState} == {
        "INITIAL": 0,
        "DEVICE_RESET": 1,
        "HOST_RESET": 2,
        "DEVICE_SIGNALLED": 4,
        "HOST_SIGNALLED": 5,
    }


def test_everything_above_host_reset_is_signalled() -> None:
    signalled = {state for state in EventState if state > EventState.HOST_RESET}
    assert signalled == {EventState.DEVICE_SIGNALLED, EventState.HOST_SIGNALLED}


def test_ring_offsets() -> None:
    assert {name: value for name, value in vars(records).items() if name.startswith("RING_")} == {
        "RING_HEADER": 512,
        "RING_TAIL": 0,
        "RING_COMPLETED": 64,
        "RING_WAITERS": 72,
        "RING_ASLEEP": 76,
        "RING_RESULT": 128,
        "RING_TEXT_SIZE": 132,
        "RING_FAILED": 136,
        "RING_LOST": 144,
        "RING_TEXT": 192,
        "RING_TEXT_MAX": 320,
    }


def test_the_fault_text_fills_the_ring_header_to_its_end() -> None:
    assert records.RING_TEXT + records.RING_TEXT_MAX == records.RING_HEADER


def test_the_two_sides_of_a_ring_write_to_different_cache_lines() -> None:
    driver, engine = records.RING_TAIL // 64, records.RING_COMPLETED // 64
    assert driver != engine


def test_ring_sizes() -> None:
    assert (records.MIN_SLOTS, records.MAX_SLOTS) == (2, 4096)
    assert records.ring_size(2) == 640
    assert records.ring_size(4096) == 262656


def test_the_status_header_keeps_its_bytes() -> None:
    fields = (records.STATUS_MAGIC, records.STATUS_VERSION, 2, 1234, 1_000_000_000_000_000_000)
    assert records.STATUS_HEADER.pack(*fields) == _STATUS_HEADER
    assert records.STATUS_HEADER.unpack(_STATUS_HEADER) == fields


def test_status_page_layout() -> None:
    assert records.STATUS_HEADER.size == 64
    assert records.STATUS_DEVICE_SIZE == 256
    assert (records.status_offset(0), records.status_offset(3)) == (64, 832)
    assert (records.status_size(1), records.status_size(4)) == (320, 1088)


def test_status_words() -> None:
    assert {word.name: word.value for word in StatusWord} == {
        "PLATFORM": 0,
        "ENGINE_PID": 1,
        "STATE": 2,
        "RESTARTS": 3,
        "MEMORY_TOTAL": 4,
        "MEMORY_USED": 5,
        "CONTEXTS": 6,
        "HEARTBEAT": 8,
        "SUBMISSIONS": 9,
        "COMMANDS": 10,
        "INFERENCES": 11,
        "FAULTS": 12,
        "BUSY": 13,
        "STAGED": 14,
        "HANGS": 16,
        "ABORTED": 17,
        "OFFENCES": 18,
        "REFUSALS": 19,
        "TILE_BUSY": 24,
        "OVERLAPPED": 25,
    }
    assert max(StatusWord) * 8 < records.STATUS_DEVICE_SIZE


def test_device_states() -> None:
    assert records.STATE_NAMES == {0: "starting", 1: "ready", 2: "resetting", 3: "failed"}
    assert [state.value for state in DeviceState] == [0, 1, 2, 3]
