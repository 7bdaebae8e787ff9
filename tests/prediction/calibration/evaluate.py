"""Predictions beside the published figures: errors, and the share of pairs in the right order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

import msgspec
import numpy as np

from softnpu.emulator.prediction.groups import Unit
from softnpu.emulator.prediction.timing.calibration import Calibration
from softnpu.emulator.prediction.timing.devices import Device, find_device
from softnpu.emulator.prediction.timing.features import work_of
from softnpu.emulator.prediction.timing.shave_table import find_kernel
from softnpu.emulator.prediction.timing.work import Work
from tests.prediction.calibration import fit
from tests.prediction.calibration.measurements import WorkloadRow

LeftOut = Mapping[str, Calibration]
"""The factors fitted without each model."""
CLEARLY: Final = 1.3
"""Measurements that differ by less form no pair: such a difference decides nothing."""
MEDIAN, P90, ORDERED = 0.25, 0.60, 0.90
"""Targets for the predictions of models."""
_VPUNN_MHZ: Final = {"3720": 1300.0, "4000": 1700.0, "5010": 1950.0}
"""The clock in which VPUNN counts each platform's cycles."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure and its prediction, in microseconds; `error` is predicted over published, less 1.

    `left_out`: calibration has not seen the model; `remark`: what is unexpected in the row.
    """

    id: str
    kind: str
    platform: str
    precision: str
    published: str
    published_us: float
    predicted_us: float
    error: float
    left_out: bool
    remark: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of many rows. `pairs` differ clearly, `ordered` are those in the right order.

    `met`: whether targets are met; None for rows shown for comparison only.
    """

    name: str
    rows: int
    median: float
    p90: float
    pairs: int
    ordered: float | None
    met: bool | None


def compare_models(
    cases: Sequence[fit.Case], left_out: LeftOut, *, same_selection: bool = False
) -> tuple[Compared, ...]:
    """Predict each row of a model with the factors fitted without that model.

    `same_selection`: as if 4000 selected boxes as fast as 3720, as its hardware suggests.
    """
    return tuple(_compared(case, _left_out_us(case, left_out, same_selection)) for case in cases)


def compare_roofline(cases: Sequence[fit.Case]) -> tuple[Compared, ...]:
    """Compare each row with the device's peak rates alone: shows the worth of the details."""
    return tuple(_compared(case, case.roofline_us) for case in cases)


def _left_out_us(case: fit.Case, left_out: LeftOut, same_selection: bool) -> float:
    factors = left_out[case.row.model]
    if same_selection:
        factors = msgspec.structs.replace(factors, selection_4000_ns=factors.selection_3720_ns)
    return case.predicted_us(factors)


def _compared(case: fit.Case, predicted_us: float) -> Compared:
    row = case.row
    return Compared(
        id=row.model,
        kind="latency" if row.latency else "throughput",
        platform=row.platform,
        precision=row.precision.value,
        published=f"{row.published:g} {row.unit}",
        published_us=row.us,
        predicted_us=predicted_us,
        error=predicted_us / row.us - 1,
        left_out=True,
        remark=row.remark,
    )


def compare_workloads(rows: Sequence[WorkloadRow]) -> tuple[Compared, ...]:
    """Predict each workload on one tile or SHAVE from the device's figures, uncalibrated."""
    return tuple(_compared_workload(row) for row in rows)


def _compared_workload(row: WorkloadRow) -> Compared:
    work = _workload(row, find_device(row.platform))
    clock = _VPUNN_MHZ[row.platform]
    if work.group.unit is Unit.DPU:
        predicted = work.dpu_cycles / clock
    else:
        predicted = find_kernel(row.platform, work.kernel).time(work.elements, work.rows, 1)
    published = row.cycles / clock
    return Compared(
        id=row.id,
        kind="workload",
        platform=row.platform,
        precision=row.precision.value,
        published=f"{row.cycles} cycles",
        published_us=published,
        predicted_us=predicted,
        error=predicted / published - 1,
        left_out=False,
        remark="",
    )


def _workload(row: WorkloadRow, device: Device) -> Work:
    # the rows of NPU 5 are software kernels, even for operations that its DPU has
    device = replace(device, native=frozenset())
    works = work_of(row.graph(), device, 1, row.precision)
    return next(work for work in works if work.group.unit is not Unit.DMA)


def summarise(name: str, rows: Sequence[Compared], *, held: bool = True) -> Summary:
    """Return median and 90th percentile of absolute errors, and the order of clearly different pairs.

    `held`: whether the rows are held to the targets. Only left-out models form pairs.
    """
    errors = np.array([abs(row.error) for row in rows])
    median, p90 = float(np.median(errors)), float(np.percentile(errors, 90))
    pairs = combinations([row for row in rows if row.left_out], 2)
    right = [_ordered(one, other) for one, other in pairs if _are_pair(one, other)]
    ordered = sum(right) / len(right) if right else None
    met = median <= MEDIAN and p90 <= P90 and (ordered is None or ordered >= ORDERED)
    return Summary(
        name=name,
        rows=len(rows),
        median=median,
        p90=p90,
        pairs=len(right),
        ordered=ordered,
        met=met if held else None,
    )


def _are_pair(one: Compared, other: Compared) -> bool:
    if one.kind != other.kind:
        return False
    slower, faster = max(one.published_us, other.published_us), min(one.published_us, other.published_us)
    return slower / faster >= CLEARLY


def _ordered(one: Compared, other: Compared) -> bool:
    return (one.published_us < other.published_us) == (one.predicted_us < other.predicted_us)


def summaries(cases: Sequence[fit.Case], left_out: LeftOut) -> tuple[Summary, ...]:
    """Summarise all models, those without a remark, each platform, and two simpler predictions."""
    models = compare_models(cases, left_out)
    plain = compare_models(cases, left_out, same_selection=True)
    platforms = dict.fromkeys(row.platform for row in models)
    return (
        summarise("all rows of models", models),
        summarise("without marked rows", [row for row in models if not row.remark]),
        *(
            summarise(f"on {name}", [row for row in models if row.platform == name], held=False)
            for name in platforms
        ),
        summarise("boxes on 4000 as on 3720", plain, held=False),
        summarise("peak rates alone", compare_roofline(cases), held=False),
    )
