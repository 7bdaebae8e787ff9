"""Command buffers: a header and a run of commands, recorded by a driver, executed by the engine.

Every command is a multiple of 8 bytes long. Memory is named by an allocation's handle and an offset into it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from softnpu.emulator.interface.layout import Layout
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.version import INTERFACE_MAJOR

MAGIC = b"SNPC"
HEADER_LAYOUT = Layout(
    """
    magic     char[4]
    major     u16  # INTERFACE_MAJOR
    flags     u16  # 0
    size      u32  # bytes of header and commands
    count     u32  # commands
    reserved  16
    """
)
HEADER = HEADER_LAYOUT.struct
MAX_BUFFER = 16 * 1024 * 1024
MAX_ARGUMENTS = 4096


class CommandType(enum.IntEnum):
    """The firmware's job-command numbers, where the real firmware has the command."""

    NOP = 0x001
    TIMESTAMP = 0x100
    EVENT_WAIT = 0x101
    EVENT_SIGNAL = 0x102
    BARRIER = 0x103
    EVENT_RESET = 0x104
    METRIC_SNAPSHOT = 0x106
    MEMORY_FILL = 0x202
    COPY = 0x302
    COPY_REGION = 0x303
    GRAPH_INITIALIZE = 0x305
    GRAPH_EXECUTE = 0x306


def _command(fields: str) -> Layout:
    return Layout("type u16, flags u16, size u32, " + fields)


HEAD = _command("")
AT = _command("at ref")
FILL = _command("at ref, length u64, pattern char[8], pattern_size u32, reserved 4")
COPY = _command("target ref, source ref, length u64")
COPY_REGION = _command("target ref, target_pitch u64, source ref, source_pitch u64, width u64, rows u64")
GRAPH = _command("graph u64")
EXECUTE = _command("graph u64, inference u64, argument_count u32, strides_count u32, profiling ref")
"""Followed by the arguments, each a `ref`, then strides. Memory 0 of `profiling`: no profile."""
STRIDES = Layout("argument u32, steps u32[5]")  # in elements, innermost dimension first
MAX_DIMS = 5
LAYOUTS = {
    CommandType.TIMESTAMP: AT,
    CommandType.EVENT_WAIT: AT,
    CommandType.EVENT_SIGNAL: AT,
    CommandType.BARRIER: HEAD,
    CommandType.EVENT_RESET: AT,
    CommandType.METRIC_SNAPSHOT: AT,
    CommandType.MEMORY_FILL: FILL,
    CommandType.COPY: COPY,
    CommandType.COPY_REGION: COPY_REGION,
    CommandType.GRAPH_INITIALIZE: GRAPH,
    CommandType.GRAPH_EXECUTE: EXECUTE,
}

_HEAD = HEAD.struct
_MEMORY = AT.struct
_FILL = FILL.struct
_COPY = COPY.struct
_REGION = COPY_REGION.struct
_GRAPH = GRAPH.struct
_EXECUTE = EXECUTE.struct
_ARGUMENT = struct.Struct("<QQ")
_STRIDES = STRIDES.struct


class MemoryAt(NamedTuple):
    """A position in memory: allocation handle and offset in bytes."""

    memory: int
    offset: int


class Barrier(NamedTuple):
    """Wait for all earlier commands of the queue before starting a later one."""


class Timestamp(NamedTuple):
    """Write the device clock (u64, in ticks of `DeviceInfo.timer_ns_per_tick`) to `at`."""

    at: MemoryAt


class EventWait(NamedTuple):
    """Wait for the signal at `at`, at most the watchdog's limit."""

    at: MemoryAt


class EventSignal(NamedTuple):
    """Signal the signal at `at`."""

    at: MemoryAt


class EventReset(NamedTuple):
    """Reset the signal at `at`."""

    at: MemoryAt


class MetricSnapshot(NamedTuple):
    """Write the counters of the device (`metrics.SNAPSHOT`) to `at`."""

    at: MemoryAt


class Fill(NamedTuple):
    """Repeat `pattern` (1, 2, 4 or 8 bytes) over `size` bytes at `at`."""

    at: MemoryAt
    size: int
    pattern: bytes


class Copy(NamedTuple):
    """Copy `size` bytes; the two ranges may overlap."""

    target: MemoryAt
    source: MemoryAt
    size: int


class CopyRegion(NamedTuple):
    """Copy `rows` rows of `width` bytes; rows start `pitch` bytes apart."""

    target: MemoryAt
    target_pitch: int
    source: MemoryAt
    source_pitch: int
    width: int
    rows: int


class GraphInit(NamedTuple):
    """Check that the graph is on the device."""

    graph: int


class GraphExecute(NamedTuple):
    """One inference: all inputs, then all outputs, in the order of the graph's metadata.

    `strides` pairs the index of an argument with its strides in elements, innermost dimension first, 0 for
    unused dimensions. `profiling` is the target of the profile.
    """

    graph: int
    inference: int
    arguments: tuple[MemoryAt, ...]
    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    profiling: MemoryAt | None = None


Command = (
    Barrier
    | Timestamp
    | EventWait
    | EventSignal
    | EventReset
    | MetricSnapshot
    | Fill
    | Copy
    | CopyRegion
    | GraphInit
    | GraphExecute
)


def places(command: Command) -> Iterator[MemoryAt]:
    """Yield the memory named by a command."""
    for field in command:
        if isinstance(field, MemoryAt):
            yield field
        elif isinstance(field, tuple):
            yield from (entry for entry in field if isinstance(entry, MemoryAt))


_AT_COMMANDS: dict[int, type[Timestamp | EventWait | EventSignal | EventReset | MetricSnapshot]] = {
    CommandType.TIMESTAMP: Timestamp,
    CommandType.EVENT_WAIT: EventWait,
    CommandType.EVENT_SIGNAL: EventSignal,
    CommandType.EVENT_RESET: EventReset,
    CommandType.METRIC_SNAPSHOT: MetricSnapshot,
}
_AT_TYPES = {cls: CommandType(number) for number, cls in _AT_COMMANDS.items()}
_FIXED_SHAPES: dict[int, struct.Struct] = {
    kind: layout.struct for kind, layout in LAYOUTS.items() if kind != CommandType.GRAPH_EXECUTE
}


def encode_command(command: Command) -> bytes:
    """Encode one command."""
    match command:
        case Barrier():
            return _HEAD.pack(CommandType.BARRIER, 0, _HEAD.size)
        case Fill(at, size, pattern):
            padded = pattern.ljust(8, b"\0")
            return _FILL.pack(CommandType.MEMORY_FILL, 0, _FILL.size, *at, size, padded, len(pattern))
        case Copy(target, source, size):
            return _COPY.pack(CommandType.COPY, 0, _COPY.size, *target, *source, size)
        case GraphInit(graph):
            return _GRAPH.pack(CommandType.GRAPH_INITIALIZE, 0, _GRAPH.size, graph)
        case CopyRegion(target, target_pitch, source, source_pitch, width, rows):
            ends = (*target, target_pitch, *source, source_pitch)
            return _REGION.pack(CommandType.COPY_REGION, 0, _REGION.size, *ends, width, rows)
        case GraphExecute():
            return _encode_execute(command)
        case Timestamp(at) | EventWait(at) | EventSignal(at) | EventReset(at) | MetricSnapshot(at):
            return _MEMORY.pack(_AT_TYPES[type(command)], 0, _MEMORY.size, *at)


def _encode_execute(command: GraphExecute) -> bytes:
    parts = [_ARGUMENT.pack(*argument) for argument in command.arguments]
    parts += [
        _STRIDES.pack(index, *strides, *[0] * (MAX_DIMS - len(strides))) for index, strides in command.strides
    ]
    size = _EXECUTE.size + sum(len(part) for part in parts)
    head = _EXECUTE.pack(
        CommandType.GRAPH_EXECUTE,
        0,
        size,
        command.graph,
        command.inference,
        len(command.arguments),
        len(command.strides),
        *(command.profiling or (0, 0)),
    )
    return head + b"".join(parts)


def encode_buffer(commands: Sequence[bytes]) -> bytes:
    """Assemble a command buffer from encoded commands."""
    body = b"".join(commands)
    return HEADER.pack(MAGIC, INTERFACE_MAJOR, 0, HEADER.size + len(body), len(commands)) + body


def handles(command: Command) -> Iterator[int]:
    """Yield every handle named by a command."""
    match command:
        case Barrier():
            return
        case Copy() | CopyRegion():
            yield command.target.memory
            yield command.source.memory
        case GraphInit(graph):
            yield graph
        case GraphExecute():
            yield command.graph
            for argument in command.arguments:
                yield argument.memory
            if command.profiling is not None:
                yield command.profiling.memory
        case _:
            yield command.at.memory


def decode_each(data: bytes) -> Iterator[Command | None]:
    """Decode a buffer's commands; yield None for a NOP. `data` must be a private copy: clients may change it.

    Raises `Refused` at the first bad byte, naming the command by its number.
    """
    if len(data) < HEADER.size:
        raise _malformed("header", found=f"{len(data)} bytes", expected=f"{HEADER.size} bytes at least")
    magic, major, flags, size, count = HEADER.unpack_from(data)
    if magic != MAGIC or major != INTERFACE_MAJOR or flags or data[16 : HEADER.size] != bytes(16):
        raise _malformed(
            "header",
            found=f"magic {magic!r}, major {major}, flags {flags}",
            expected=f"{MAGIC!r}, 1, 0, and 16 zero bytes",
        )
    if size != len(data):
        raise _malformed("header", found=f"size {size}, submission says {len(data)}", expected="equal sizes")
    at = HEADER.size
    for number in range(count):
        if at + _HEAD.size > len(data):
            raise _malformed(
                f"command {number}", found=f"starts at byte {at} of {len(data)}", expected="a whole command"
            )
        kind, flags, length = _HEAD.unpack_from(data, at)
        if flags:
            raise _malformed(
                f"command {number}", found=f"flags {flags:#x}", expected="0: this interface version has none"
            )
        if length < _HEAD.size or length % 8 or at + length > len(data):
            raise _malformed(
                f"command {number}",
                found=f"{length} bytes at {at} of {len(data)}",
                expected="a multiple of 8 inside the buffer",
            )
        yield _decode(number, kind, data, at, length)
        at += length
    if at != len(data):
        raise _malformed("end", found=f"{len(data) - at} bytes after command {count}", expected="none")


def _decode(number: int, kind: int, data: bytes, at: int, length: int) -> Command | None:
    if kind == CommandType.NOP:
        return None
    if kind == CommandType.GRAPH_EXECUTE:
        return _decode_execute(number, data, at, length)
    shape = _FIXED_SHAPES.get(kind)
    if shape is None:
        raise _malformed(
            f"command {number}", found=f"type {kind:#x}", expected="a command type of this interface version"
        )
    if length != shape.size:
        raise _malformed(
            f"command {number} ({CommandType(kind).name})", found=f"{length} bytes", expected=f"{shape.size}"
        )
    fields = shape.unpack_from(data, at)[3:]
    if kind == CommandType.BARRIER:
        return Barrier()
    if kind == CommandType.MEMORY_FILL:
        memory, offset, size, pattern, pattern_size = fields
        if pattern_size not in (1, 2, 4, 8):
            raise _malformed(
                f"command {number} (MEMORY_FILL)",
                found=f"pattern of {pattern_size} bytes",
                expected="1, 2, 4 or 8 bytes",
            )
        return Fill(MemoryAt(memory, offset), size, pattern[:pattern_size])
    if kind == CommandType.COPY:
        return Copy(MemoryAt(*fields[0:2]), MemoryAt(*fields[2:4]), fields[4])
    if kind == CommandType.COPY_REGION:
        ends = MemoryAt(*fields[0:2]), fields[2], MemoryAt(*fields[3:5]), fields[5]
        return CopyRegion(*ends, *fields[6:8])
    if kind == CommandType.GRAPH_INITIALIZE:
        return GraphInit(fields[0])
    return _AT_COMMANDS[kind](MemoryAt(*fields))


def _decode_execute(number: int, data: bytes, at: int, length: int) -> GraphExecute:
    name = f"command {number} (GRAPH_EXECUTE)"
    if length < _EXECUTE.size:
        raise _malformed(name, found=f"{length} bytes", expected=f"{_EXECUTE.size} at least")
    graph, inference, count, strided, memory, offset = _EXECUTE.unpack_from(data, at)[3:]
    arguments_at = at + _EXECUTE.size
    strides_at = arguments_at + count * _ARGUMENT.size
    end = strides_at + strided * _STRIDES.size
    if count > MAX_ARGUMENTS or strided > count or end != at + length:
        raise _malformed(
            name,
            found=f"{count} arguments, {strided} with strides, in {length} bytes",
            expected=f"at most {MAX_ARGUMENTS}, sizes that agree",
        )
    arguments = tuple(MemoryAt(*pair) for pair in _ARGUMENT.iter_unpack(data[arguments_at:strides_at]))
    strides = tuple((entry[0], entry[1:]) for entry in _STRIDES.iter_unpack(data[strides_at:end]))
    if any(index >= count for index, _ in strides):
        raise _malformed(
            name, found=f"strides of argument {max(strides)[0]}", expected=f"an argument below {count}"
        )
    return GraphExecute(graph, inference, arguments, strides, MemoryAt(memory, offset) if memory else None)


def _malformed(where: str, found: str, expected: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, f"command buffer, {where}", found=found, expected=expected)
