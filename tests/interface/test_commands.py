"""Command buffers: the bytes of every command, and a decoder that survives any bytes."""

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
    MetricSnapshot,
    Timestamp,
)
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

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
    "metric_snapshot": (MetricSnapshot(_AT), "0601 0000 18000000" + _AT_HEX),
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


def _buffer(*encoded: bytes) -> bytes:
    return commands.encode_buffer(encoded)


def _refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        list(commands.decode_each(data))
    assert caught.value.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    return caught.value


def test_every_command_type_has_a_vector() -> None:
    names = {name.removesuffix("_strided_profiled").upper() for name in _VECTORS}
    assert names | {"NOP"} == {kind.name for kind in CommandType}


@pytest.mark.parametrize("name", _VECTORS)
def test_a_command_keeps_its_bytes_and_names_its_handles(name: str) -> None:
    command, text = _VECTORS[name]
    assert commands.encode_command(command).hex() == bytes.fromhex(text).hex()
    (decoded,) = commands.decode_each(_buffer(bytes.fromhex(text)))
    assert (type(decoded), decoded) == (type(command), command)
    shown = {
        handle for handle in (_AT.memory, _OTHER.memory, _GRAPH) if handle.to_bytes(8, "little").hex() in text
    }
    assert set(commands.handles(command)) == shown


def test_a_buffer_keeps_its_bytes_and_nops_of_any_size_are_skipped() -> None:
    body = [commands.encode_command(Barrier()), commands.encode_command(GraphInit(_GRAPH)), _NOP]
    assert commands.encode_buffer(body).hex() == _BUFFER.hex()
    assert list(commands.decode_each(_BUFFER)) == [Barrier(), GraphInit(_GRAPH), None]
    assert list(commands.decode_each(_buffer())) == []


@pytest.mark.parametrize(
    ("data", "object", "found"),
    [
        (_BUFFER[:31], "header", "31 bytes"),
        (b"", "header", "0 bytes"),
        (b"SNPX" + _BUFFER[4:], "header", "magic b'SNPX'"),
        (_BUFFER[:4] + b"\2" + _BUFFER[5:], "header", "major 2"),
        (_BUFFER[:6] + b"\1" + _BUFFER[7:], "header", "flags 1"),
        (_BUFFER[:8] + b"\x47" + _BUFFER[9:], "header", "size 71, submission says 72"),
        (_BUFFER[:12] + b"\4" + _BUFFER[13:], "command 3", "starts at byte 72 of 72"),
        (_BUFFER[:12] + b"\xff\xff\xff\xff" + _BUFFER[16:], "command 3", "starts at byte 72"),
        (_BUFFER[:12] + b"\2" + _BUFFER[13:], "end", "16 bytes after command 2"),
    ],
)
def test_a_malformed_buffer_is_refused_naming_the_error(data: bytes, object: str, found: str) -> None:
    info = _refusal(data).info
    assert info.object == f"command buffer, {object}"
    assert found in info.found


@pytest.mark.parametrize("length", [0, 4, 7, 9, 12, 17, 24, 2**32 - 8])
def test_an_odd_or_overlong_command_length_is_refused(length: int) -> None:
    nop = struct.pack("<HHIQ", CommandType.NOP, 0, length, 0)
    assert _refusal(_buffer(nop)).info.object == "command buffer, command 0"


def test_an_unknown_type_is_refused_by_its_number() -> None:
    for kind in (0x000, 0x105, 0x304, 0x307, 0xFFFF):
        info = _refusal(_buffer(_NOP, struct.pack("<HHIQQ", kind, 0, 24, 0, 0))).info
        assert (info.object, info.found) == ("command buffer, command 1", f"type {kind:#x}")


@pytest.mark.parametrize("name", [name for name in _VECTORS if not name.startswith("graph_execute")])
def test_a_command_of_another_size_than_its_type_has_is_refused(name: str) -> None:
    right = bytes.fromhex(_VECTORS[name][1])
    for size in {max(8, len(right) - 8), len(right) + 8} - {len(right)}:
        resized = right[:4] + struct.pack("<I", size) + (right[8:] + bytes(8))[: size - 8]
        info = _refusal(_buffer(resized)).info
        assert info.object == f"command buffer, command 0 ({name.upper()})"
        assert (info.found, info.expected) == (f"{size} bytes", f"{len(right)}")


def test_an_argument_count_inconsistent_with_the_size_or_above_the_most_is_refused() -> None:
    for count in (0, 1, 3, commands.MAX_ARGUMENTS + 1, 2**32 - 1):
        execute = bytearray(bytes.fromhex(_VECTORS["graph_execute"][1]))
        struct.pack_into("<I", execute, 24, count)
        assert "GRAPH_EXECUTE" in _refusal(_buffer(bytes(execute))).info.object
    most = GraphExecute(_GRAPH, 1, (_AT,) * commands.MAX_ARGUMENTS)
    assert list(commands.decode_each(_buffer(commands.encode_command(most)))) == [most]
    more = GraphExecute(_GRAPH, 1, (_AT,) * (commands.MAX_ARGUMENTS + 1))
    _refusal(_buffer(commands.encode_command(more)))


def test_a_fill_pattern_must_be_1_2_4_or_8_bytes() -> None:
    for pattern_size, size in ((0, 8), (3, 9), (16, 16)):
        fill = struct.pack("<HHIQQQ8sI4x", CommandType.MEMORY_FILL, 0, 48, *_AT, size, bytes(8), pattern_size)
        assert "MEMORY_FILL" in _refusal(_buffer(fill)).info.object


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([bytes.fromhex(text) for _, text in _VECTORS.values()]), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.integers(0, 16),
    st.binary(max_size=200),
)
def test_any_bytes_are_refused_or_decoded_and_encoded_to_the_same(
    recorded: list[bytes], changes: list[tuple[int, int]], cut: int, noise: bytes
) -> None:
    mutated = bytearray(_buffer(*recorded))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    framed = commands.HEADER.pack(commands.MAGIC, 1, 0, 32 + len(noise), len(noise) % 8) + noise
    for data in (bytes(mutated), bytes(mutated[: len(mutated) - cut]), framed, noise):
        with contextlib.suppress(Refused):
            decoded = [command for command in commands.decode_each(data) if command is not None]
            again = _buffer(*(commands.encode_command(command) for command in decoded))
            assert list(commands.decode_each(again)) == decoded
