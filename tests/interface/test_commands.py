"""Command buffers: the bytes of every command, and that a decoder survives any bytes."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.interface import commands
from softnpu.emulator.interface.commands import (
    Barrier,
    Command,
    CommandType,
    Copy,
    CopyRegion,
    EventReset,
    EventSignal,
    EventWait,
    Fill,
    GraphExecute,
    GraphInit,
    MemoryAt,
    Timestamp,
)
from softnpu.emulator.interface.result import Refused, ZeResult

_AT = MemoryAt(0x0200000100000001, 64)
_OTHER = MemoryAt(0x0200000100000002, 128)
_GRAPH = 0x0400000100000003
_AT_HEX = "0100000001000002 4000000000000000"
_OTHER_HEX = "0200000001000002 8000000000000000"

_VECTORS: dict[str, tuple[Command, str]] = {
    "barrier": (Barrier(), "0301 0000 08000000"),
    "timestamp": (Timestamp(_AT), "0001 0000 18000000" + _AT_HEX),
    "event_wait": (EventWait(_AT), "0101 0000 18000000" + _AT_HEX),
    "event_signal": (EventSignal(_AT), "0201 0000 18000000" + _AT_HEX),
    "event_reset": (EventReset(_AT), "0401 0000 18000000" + _AT_HEX),
    "memory_fill": (
        Fill(_AT, 32, b"\x11\x22\x33\x44"),
        "0202 0000 30000000" + _AT_HEX + "2000000000000000 1122334400000000 04000000 00000000",
    ),
    "copy": (
        Copy(_AT, _OTHER, 256),
        "0203 0000 30000000" + _AT_HEX + _OTHER_HEX + "0001000000000000",
    ),
    "copy_region": (
        CopyRegion(_AT, 16, _OTHER, 32, 8, 4),
        "0303 0000 48000000"
        + _AT_HEX
        + "1000000000000000"
        + _OTHER_HEX
        + "2000000000000000 0800000000000000 0400000000000000",
    ),
    "graph_initialize": (GraphInit(_GRAPH), "0503 0000 10000000 0300000001000004"),
    "graph_execute": (
        GraphExecute(_GRAPH, 7, (_AT, _OTHER)),
        "0603 0000 50000000 0300000001000004 0700000000000000 02000000 00000000"
        "0000000000000000 0000000000000000" + _AT_HEX + _OTHER_HEX,
    ),
    "graph_execute_strided_profiled": (
        GraphExecute(_GRAPH, 7, (_AT, _AT), ((1, (1, 8, 64, 0, 0)),), _OTHER),
        "0603 0000 68000000 0300000001000004 0700000000000000 02000000 01000000"
        + _OTHER_HEX
        + _AT_HEX
        + _AT_HEX
        + "01000000 01000000 08000000 40000000 00000000 00000000",
    ),
}
_NOP = bytes.fromhex("0100 0000 10000000 ffffffffffffffff")
_BUFFER = bytes.fromhex(
    "534e5043 0100 0000 48000000 03000000 00000000000000000000000000000000"
    "0301 0000 08000000"
    "0503 0000 10000000 0300000001000004"
    "0100 0000 10000000 ffffffffffffffff"
)

_u64 = st.integers(0, 2**64 - 1)
_places = st.builds(MemoryAt, _u64, _u64)
_fills = st.sampled_from([1, 2, 4, 8]).flatmap(
    lambda size: st.builds(
        Fill,
        _places,
        st.integers(0, (2**64 - 1) // size).map(lambda count: count * size),
        st.binary(min_size=size, max_size=size),
    )
)
_commands: st.SearchStrategy[Command] = st.one_of(
    st.just(Barrier()),
    st.builds(Timestamp, _places),
    st.builds(EventWait, _places),
    st.builds(EventSignal, _places),
    st.builds(EventReset, _places),
    _fills,
    st.builds(Copy, _places, _places, _u64),
    st.builds(CopyRegion, _places, _u64, _places, _u64, _u64, _u64),
    st.builds(GraphInit, _u64),
    st.lists(_places, max_size=5).flatmap(
        lambda places: st.builds(
            GraphExecute,
            _u64,
            _u64,
            st.just(tuple(places)),
            st.just(tuple((index, (1, 2, 3, 4, 5)) for index in range(len(places) // 2))),
            st.none() | st.builds(MemoryAt, st.integers(1, 2**64 - 1), _u64),
        )
    ),
)


def _buffer(*encoded: bytes) -> bytes:
    return commands.encode_buffer(encoded)


def _refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        list(commands.decode_buffer(data))
    assert caught.value.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    return caught.value


def test_command_numbers() -> None:
    assert {kind.name: kind.value for kind in CommandType} == {
        "NOP": 0x001,
        "TIMESTAMP": 0x100,
        "EVENT_WAIT": 0x101,
        "EVENT_SIGNAL": 0x102,
        "BARRIER": 0x103,
        "EVENT_RESET": 0x104,
        "MEMORY_FILL": 0x202,
        "COPY": 0x302,
        "COPY_REGION": 0x303,
        "GRAPH_INITIALIZE": 0x305,
        "GRAPH_EXECUTE": 0x306,
    }


def test_limits_keep_their_values() -> None:
    assert (commands.HEADER.size, commands.MAX_BUFFER, commands.MAX_ARGUMENTS) == (32, 16777216, 1024)


def test_every_command_type_has_a_vector() -> None:
    names = {name.removesuffix("_strided_profiled").upper() for name in _VECTORS}
    assert names | {"NOP"} == {kind.name for kind in CommandType}


@pytest.mark.parametrize("name", _VECTORS)
def test_a_command_keeps_its_bytes(name: str) -> None:
    command, text = _VECTORS[name]
    assert commands.encode_command(command).hex() == bytes.fromhex(text).hex()


@pytest.mark.parametrize("name", _VECTORS)
def test_a_command_decodes_from_its_bytes(name: str) -> None:
    command, text = _VECTORS[name]
    (decoded,) = commands.decode_buffer(_buffer(bytes.fromhex(text)))
    assert type(decoded) is type(command)
    assert decoded == command


def test_the_handles_of_a_command_are_all_that_it_names() -> None:
    named = {name: set(commands.handles(command)) for name, (command, _) in _VECTORS.items()}
    one, two = {_AT.memory}, {_AT.memory, _OTHER.memory}
    assert named == {
        "barrier": set(),
        "timestamp": one,
        "event_wait": one,
        "event_signal": one,
        "event_reset": one,
        "memory_fill": one,
        "copy": two,
        "copy_region": two,
        "graph_initialize": {_GRAPH},
        "graph_execute": {_GRAPH} | two,
        "graph_execute_strided_profiled": {_GRAPH} | two,
    }


def test_a_buffer_keeps_its_bytes() -> None:
    body = [commands.encode_command(Barrier()), commands.encode_command(GraphInit(_GRAPH)), _NOP]
    assert commands.encode_buffer(body).hex() == _BUFFER.hex()


def test_a_buffer_decodes_and_nops_of_any_size_are_skipped() -> None:
    assert list(commands.decode_buffer(_BUFFER)) == [Barrier(), GraphInit(_GRAPH)]


def test_an_empty_buffer_is_valid() -> None:
    assert list(commands.decode_buffer(_buffer())) == []


@pytest.mark.parametrize("length", range(32))
def test_a_buffer_shorter_than_its_header_is_refused(length: int) -> None:
    assert "header" in _refusal(_BUFFER[:length]).info.object


@pytest.mark.parametrize(
    ("at", "value"), [(0, b"SNPX"), (4, b"\x02\x00"), (6, b"\x01\x00")], ids=["magic", "major", "flags"]
)
def test_a_foreign_header_is_refused(at: int, value: bytes) -> None:
    changed = bytearray(_BUFFER)
    changed[at : at + len(value)] = value
    assert "header" in _refusal(bytes(changed)).info.object


@pytest.mark.parametrize("size", [0, 71, 73, 2**32 - 1])
def test_another_size_than_the_submission_says_is_refused(size: int) -> None:
    _refusal(_BUFFER[:8] + struct.pack("<I", size) + _BUFFER[12:])


@pytest.mark.parametrize("count", [4, 2**32 - 1])
def test_more_commands_than_bytes_are_refused_by_number(count: int) -> None:
    error = _refusal(_BUFFER[:12] + struct.pack("<I", count) + _BUFFER[16:])
    assert error.info.object == "command buffer, command 3"


def test_bytes_after_the_last_command_are_refused() -> None:
    error = _refusal(_BUFFER[:12] + struct.pack("<I", 2) + _BUFFER[16:])
    assert error.info.found == "16 bytes after command 2"


@pytest.mark.parametrize("length", [0, 4, 7, 9, 12, 17, 24, 2**32 - 8])
def test_a_command_length_that_is_odd_or_leaves_the_buffer_is_refused(length: int) -> None:
    nop = struct.pack("<HHIQ", CommandType.NOP, 0, length, 0)
    assert _refusal(_buffer(nop)).info.object == "command buffer, command 0"


@pytest.mark.parametrize("kind", [0x000, 0x105, 0x304, 0x307, 0xFFFF])
def test_an_unknown_type_is_refused_by_its_number(kind: int) -> None:
    error = _refusal(_buffer(_NOP, struct.pack("<HHIQQ", kind, 0, 24, 0, 0)))
    assert error.info.object == "command buffer, command 1"
    assert error.info.found == f"type {kind:#x}"


@pytest.mark.parametrize("name", [name for name in _VECTORS if not name.startswith("graph_execute")])
def test_a_command_of_another_size_than_its_type_has_is_refused(name: str) -> None:
    right = bytes.fromhex(_VECTORS[name][1])
    for size in {max(8, len(right) - 8), len(right) + 8} - {len(right)}:
        resized = right[:4] + struct.pack("<I", size) + (right[8:] + bytes(8))[: size - 8]
        error = _refusal(_buffer(resized))
        assert error.info.object == f"command buffer, command 0 ({name.upper()})"
        assert (error.info.found, error.info.expected) == (f"{size} bytes", f"{len(right)}")


@pytest.mark.parametrize("count", [0, 1, 3, 1025, 2**32 - 1])
def test_an_argument_count_that_disagrees_with_the_size_is_refused(count: int) -> None:
    execute = bytearray(bytes.fromhex(_VECTORS["graph_execute"][1]))
    struct.pack_into("<I", execute, 24, count)
    assert "GRAPH_EXECUTE" in _refusal(_buffer(bytes(execute))).info.object


def test_1024_arguments_pass_and_1025_are_refused() -> None:
    most = GraphExecute(_GRAPH, 1, (_AT,) * 1024)
    assert list(commands.decode_buffer(_buffer(commands.encode_command(most)))) == [most]
    _refusal(_buffer(commands.encode_command(GraphExecute(_GRAPH, 1, (_AT,) * 1025))))


@pytest.mark.parametrize(("pattern_size", "size"), [(0, 8), (3, 9), (16, 16), (4, 6), (8, 12)])
def test_a_fill_pattern_must_be_1_2_4_or_8_bytes_and_divide_the_size(pattern_size: int, size: int) -> None:
    fill = struct.pack("<HHIQQQ8sI4x", CommandType.MEMORY_FILL, 0, 48, *_AT, size, bytes(8), pattern_size)
    assert "MEMORY_FILL" in _refusal(_buffer(fill)).info.object


@given(st.lists(_commands, max_size=20))
def test_every_command_list_survives_the_wire(recorded: list[Command]) -> None:
    data = _buffer(*(commands.encode_command(command) for command in recorded))
    decoded = list(commands.decode_buffer(data))
    assert decoded == recorded
    assert [type(command) for command in decoded] == [type(command) for command in recorded]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Refused):
        list(commands.decode_buffer(data))


@given(st.binary(max_size=200), st.integers(0, 30))
def test_arbitrary_bytes_behind_a_right_header_are_refused_and_nothing_else(body: bytes, count: int) -> None:
    header = commands.HEADER.pack(commands.MAGIC, 1, 0, 32 + len(body), count)
    with contextlib.suppress(Refused):
        list(commands.decode_buffer(header + body))


@settings(max_examples=300)
@given(
    st.lists(_commands, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 16),
)
def test_a_mutated_buffer_is_refused_or_decoded_and_nothing_else(
    recorded: list[Command], changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(_buffer(*(commands.encode_command(command) for command in recorded)))
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(Refused):
        list(commands.decode_buffer(bytes(data[: len(data) - cut])))
