"""The commands of a list, as `Rig` appends them. `events` are (signal, number of waits, waits)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import CopyRegion, Handle, Pointer
from tests.conformance.drivers import LevelZero

Append: TypeAlias = "Callable[[LevelZero, Handle], ZeResult]"


def after(*waits: Handle, signal: Handle = None) -> tuple[Handle, int, list[Handle]]:
    """Return the events of a command that waits for some and signals another."""
    return signal, len(waits), list(waits)


def barrier(*events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_barrier(entry, *events)


def copy(target: Pointer, source: Pointer, size: int, *events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_memory_copy(entry, target, source, size, *events)


def copy_region(
    target: tuple[Pointer, CopyRegion | None, int],
    source: tuple[Pointer, CopyRegion | None, int],
    *events: Any,
    slice_pitch: int = 0,
) -> Append:
    """Copy between two sides, each an address, a region and a pitch."""
    return lambda api, entry: api.ze_command_list_append_memory_copy_region(
        entry, *target, slice_pitch, *source, slice_pitch, *events
    )


def fill(target: Pointer, pattern: bytes | None, size: int, *events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_memory_fill(entry, target, pattern, size, *events)


def timestamp(target: Pointer, *events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_write_global_timestamp(entry, target, *events)


def wait(*events: Handle) -> Append:
    return lambda api, entry: api.ze_command_list_append_wait_on_events(entry, len(events), events)


def signal(event: Handle) -> Append:
    return lambda api, entry: api.ze_command_list_append_signal_event(entry, event)


def reset(event: Handle) -> Append:
    return lambda api, entry: api.ze_command_list_append_event_reset(entry, event)


def initialize(graph: Handle, *events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_graph_initialize(entry, graph, *events)


def infer(graph: Handle, query: Handle = None, *events: Any) -> Append:
    return lambda api, entry: api.ze_command_list_append_graph_execute(entry, graph, query, *events)
