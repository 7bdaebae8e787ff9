"""Converts a graph to the uncalibrated times of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.groups import Unit, fuse
from softnpu.emulator.prediction.quantisation import Quantisation
from softnpu.emulator.prediction.timing.calibration import Features
from softnpu.emulator.prediction.timing.devices import Device
from softnpu.emulator.prediction.timing.providers import DEFAULT_PROVIDERS, Provider, UnitTime, ask
from softnpu.emulator.prediction.timing.work import Work, measure

SELECTIONS: Final = frozenset(
    ("DetectionOutput", "NonMaxSuppression", "MulticlassNms", "MatrixNms", "NMSRotated", "Proposal", "TopK")
)
"""Operations that select boxes among scores: their cost is calibrated, as no table lists it."""
_COLUMNS: Final = (
    "dpu",
    "shave",
    "dma",
    "constants",
    "activations",
    "overheads",
    "launches",
    "scores",
    "measured",
)


def work_of(graph: Graph, device: Device, tiles: int) -> tuple[Work, ...]:
    """Return the work of each group of a graph on that many tiles of a device."""
    quantised = Quantisation(graph)
    groups = fuse(graph, device.native, quantised)
    return tuple(measure(graph, group, device, tiles, quantised) for group in groups)


def copied_bytes(graph: Graph) -> int:
    """Return the bytes that the host copies for an inference: inputs and outputs in their own types."""
    return sum(port.outputs[0].size for port in (*graph.inputs, *graph.results))


def unit_times(
    works: Iterable[Work], device: Device, tiles: int, providers: Iterable[Provider] = DEFAULT_PROVIDERS
) -> tuple[UnitTime, ...]:
    """Return the providers' time of each group."""
    known = tuple(providers)
    return tuple(ask(known, work, device, tiles) for work in works)


def features_of(works: Sequence[Work], units: Sequence[UnitTime], device: Device, tiles: int) -> Features:
    """Return the times of groups, by where they are spent."""
    columns = {name: np.zeros(len(works)) for name in _COLUMNS}
    for position, (work, unit) in enumerate(zip(works, units, strict=True)):
        on_shave = work.group.unit is Unit.SHAVE
        columns["constants"][position] = work.weights_bytes / device.ddr.value / 1000
        columns["activations"][position] = (work.io_bytes + work.spilled_bytes) / device.ddr.value / 1000
        columns["launches" if on_shave else "overheads"][position] += 1
        if unit.measured:
            columns["measured"][position] = unit.us
        elif work.kernel in SELECTIONS:
            columns["scores"][position] = work.elements / 1000
        else:
            columns[work.group.unit.value.lower()][position] = unit.us
    room, parts = _prefetching(works, int(device.cmx.value * tiles))
    return Features(
        **columns,
        older=device.platform == "3720",
        clock=device.clock.value,
        room_after=room,
        first_part=parts,
    )


def _prefetching(works: Sequence[Work], cmx: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return after which group each one's constants have room beside the others' and the activations."""
    room: list[int] = []
    parts: list[float] = []
    first = 0
    waiting = 0
    for position, work in enumerate(works):
        waiting += min(work.weights_bytes, cmx // 2)
        while first < position and waiting + min(works[first].resident_bytes, cmx // 2) > cmx:
            waiting -= min(works[first].weights_bytes, cmx // 2)
            first += 1
        room.append(first)
        parts.append(min(1.0, cmx / 4 / work.weights_bytes) if work.weights_bytes else 1.0)
    return tuple(room), tuple(parts)
