"""Converts a graph to the uncalibrated times of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.groups import Unit, fuse
from softnpu.emulator.prediction.timing.calibration import Features
from softnpu.emulator.prediction.timing.devices import Device
from softnpu.emulator.prediction.timing.providers import DEFAULT_PROVIDERS, Provider, UnitTime, ask
from softnpu.emulator.prediction.timing.work import Precision, Work, measure

SELECTIONS: Final = frozenset(
    ("DetectionOutput", "NonMaxSuppression", "MulticlassNms", "MatrixNms", "NMSRotated", "Proposal")
)
"""Operations that select boxes among scores: their cost is calibrated, as no table lists it."""
_COLUMNS: Final = (
    "dpu",
    "shave",
    "dma",
    "requantise",
    "constants",
    "activations",
    "overheads",
    "launches",
    "scores",
    "measured",
)


def work_of(graph: Graph, device: Device, tiles: int, precision: Precision) -> tuple[Work, ...]:
    """Return the work of each group of a graph on that many tiles of a device."""
    groups = fuse(graph, device.native)
    return tuple(measure(graph, group, device, tiles, precision) for group in groups)


def unit_times(
    works: Iterable[Work], device: Device, tiles: int, providers: Iterable[Provider] = DEFAULT_PROVIDERS
) -> tuple[UnitTime, ...]:
    """Return the providers' time of each group."""
    known = tuple(providers)
    return tuple(ask(known, work, device, tiles) for work in works)


def features_of(
    works: Sequence[Work], units: Sequence[UnitTime], device: Device, tiles: int, precision: Precision
) -> Features:
    """Return the times of groups, by where they are spent."""
    columns = {name: np.zeros(len(works)) for name in _COLUMNS}
    passes = device.elementwise.value * 0.5 * tiles * device.clock.value
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
        if on_shave and precision is Precision.INT8:
            columns["requantise"][position] = work.elements / passes
            columns["overheads"][position] += 1
    return Features(**columns, older=device.platform == "3720")
