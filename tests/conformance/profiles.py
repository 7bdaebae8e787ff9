"""The profiling extension's records, decoded from a C program's memory."""

from __future__ import annotations

import struct
from typing import NamedTuple

_LAYER = struct.Struct("<256s50s2xIQQI4xQQQQ")
_TASK = struct.Struct("<256s50s2xIQQIIII")


class LayerRecord(NamedTuple):
    """`ze_profiling_layer_info`."""

    name: str
    type: str
    status: int
    start_ns: int
    duration_ns: int
    layer_id: int
    fused_layer_id: int
    dpu_ns: int
    sw_ns: int
    dma_ns: int


class TaskRecord(NamedTuple):
    """`ze_profiling_task_info`."""

    name: str
    type: str
    unit: int
    start_ns: int
    duration_ns: int
    active_cycles: int
    stall_cycles: int
    task_id: int
    parent_layer_id: int


def layers(data: bytes) -> list[LayerRecord]:
    """Decode layer records; the size must be a whole number of them."""
    return [LayerRecord(_text(row[0]), _text(row[1]), *row[2:]) for row in _LAYER.iter_unpack(data)]


def tasks(data: bytes) -> list[TaskRecord]:
    """Decode task records; the size must be a whole number of them."""
    return [TaskRecord(_text(row[0]), _text(row[1]), *row[2:]) for row in _TASK.iter_unpack(data)]


def _text(field: bytes) -> str:
    assert b"\0" in field, "not terminated"
    return field.split(b"\0", 1)[0].decode()
