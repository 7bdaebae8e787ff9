"""The profile of one inference, written by the engine to the profiling memory of a GRAPH_EXECUTE.

A header, then a record for each layer. Texts are UTF-8, truncated and zero-padded; times in nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from softnpu.emulator.interface.layout import Layout

CLOCK_PROPERTY = "NPU_PROFILING_CLOCK"
"""Graph property, HOST or DEVICE: the clock of its profiles if the device shows the host's."""
MAGIC = b"SNPP"
VERSION = 1
HEADER_LAYOUT = Layout(
    """
    magic     char[4]
    version   u32
    count     u32  # records that follow
    missing   u32  # records that did not fit
    start     u64  # of the inference, on the host clock
    end       u64
    reserved  32
    """
)
HEADER = HEADER_LAYOUT.struct
RECORD_LAYOUT = Layout(
    """
    name      char[256]
    type      char[64]
    unit      u32  # TaskType
    status    u32  # LayerStatus
    start     u64  # relative to the start of the header
    duration  u64
    cpu       u64
    layer     u32  # the id of the layer
    reserved  28
    """
)
RECORD = RECORD_LAYOUT.struct


class LayerStatus(enum.IntEnum):
    """`ze_layer_status_t` of the profiling extension."""

    NOT_RUN = 1
    OPTIMIZED_OUT = 2
    EXECUTED = 3


class TaskType(enum.IntEnum):
    """`ze_task_execute_type_t` of the profiling extension: the unit that a task would use."""

    NONE = 0
    DPU = 1
    SW = 2
    DMA = 3


class LayerRecord(NamedTuple):
    """One layer of one inference. Times in nanoseconds, `start` relative to the inference's start."""

    name: str
    type: str
    unit: TaskType
    status: LayerStatus
    start: int
    duration: int
    cpu: int
    layer: int


class Profile(NamedTuple):
    """The profile of one inference; `start` and `end` on the host clock."""

    start: int
    end: int
    layers: tuple[LayerRecord, ...]
    missing: int


def size_for(layers: int) -> int:
    """Return the bytes for the profile of a graph with this many layers."""
    return HEADER.size + layers * RECORD.size


def encode(profile: Profile, room: int) -> bytes:
    """Encode the profile in at most `room` bytes; layers that do not fit count as missing."""
    fit = max(0, (room - HEADER.size) // RECORD.size)
    kept = profile.layers[:fit]
    missing = profile.missing + len(profile.layers) - len(kept)
    head = HEADER.pack(MAGIC, VERSION, len(kept), missing, profile.start, profile.end)
    return head + b"".join(_pack(layer) for layer in kept)


def decode(data: bytes) -> Profile | None:
    """Decode the profile in profiling memory; return None before the first inference has written one."""
    magic, version, count, missing, start, end = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        return None
    body: Sequence[tuple[bytes, bytes, int, int, int, int, int, int]] = list(
        RECORD.iter_unpack(data[HEADER.size : HEADER.size + count * RECORD.size])
    )
    layers = tuple(
        LayerRecord(_text(row[0]), _text(row[1]), TaskType(row[2]), LayerStatus(row[3]), *row[4:])
        for row in body
    )
    return Profile(start, end, layers, missing)


def _pack(layer: LayerRecord) -> bytes:
    return RECORD.pack(
        layer.name.encode()[:255],
        layer.type.encode()[:63],
        layer.unit,
        layer.status,
        layer.start,
        layer.duration,
        layer.cpu,
        layer.layer,
    )


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")
