"""Predictions beside the published figures: errors, and how many pairs are ordered right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import msgspec
import numpy as np

from softnpu.emulator.prediction.groups import Unit
from softnpu.emulator.prediction.timing.calibration import CalibrationFile
from softnpu.emulator.prediction.timing.devices import Device, find_device
from softnpu.emulator.prediction.timing.features import work_of
from softnpu.emulator.prediction.timing.shave_table import find_kernel
from softnpu.emulator.prediction.timing.work import Work
from softnpu.tools.bench.prediction import fit
from softnpu.tools.bench.prediction.measurements import WorkloadRow

CLEARLY: Final = 1.3
"""Two measurements that differ by less are no pair: nobody chooses by such a difference."""
MEDIAN, P90, ORDERED = 0.25, 0.60, 0.90
"""What the predictions of models are held to."""
_VPUNN_MHZ: Final = {"3720": 1300.0, "4000": 1700.0, "5010": 1950.0}
"""Clock in which VPUNN counts the cycles of each platform."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure and its prediction, in microseconds; `error` is predicted over published, less 1.

    `left_out` says that calibration has not seen the model, `remark` what nobody would expect of the row.
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
    """What many rows say together. `pairs` are those that differ clearly, `ordered` the part told right.

    `met`: whether this is what predictions are held to; None for what is shown for comparison only.
    """

    name: str
    rows: int
    median: float
    p90: float
    pairs: int
    ordered: float | None
    met: bool | None


def compare_models(
    cases: Sequence[fit.Case], file: CalibrationFile, *, same_selection: bool = False
) -> Iterator[Compared]:
    """Each row of a model, predicted with the factors that were fitted without that model.

    `same_selection`: as if 4000 selected boxes as fast as 3720, which its hardware lets expect.
    """
    for case in cases:
        row, factors = case.row, file.left_out[case.row.model]
        if same_selection:
            factors = msgspec.structs.replace(factors, selection_4000_ns=factors.selection_3720_ns)
        predicted = case.predicted_us(factors)
        yield Compared(
            id=row.model,
            kind="latency" if row.latency else "throughput",
            platform=row.platform,
            precision=row.precision.value,
            published=f"{row.published:g} {row.unit}",
            published_us=row.us,
            predicted_us=predicted,
            error=predicted / row.us - 1,
            left_out=True,
            remark=row.remark,
        )


def document_line(row: Compared) -> str:
    """The row in the table of `docs/prediction-speed.md`."""
    mark = " \\*" if row.remark else ""
    what = f"{row.precision} {row.kind}"
    return f"| {row.id}{mark} | {row.platform} | {what} | {row.published} | {row.error:+.0%} |"


def compare_workloads(rows: Sequence[WorkloadRow]) -> Iterator[Compared]:
    """Each workload on one tile or one SHAVE, by the figures of the device without any calibration."""
    for row in rows:
        device = find_device(row.platform)
        work = _workload(row, device)
        clock = _VPUNN_MHZ[row.platform]
        if work.group.unit is Unit.DPU:
            predicted = work.dpu_cycles / clock
        else:
            predicted = find_kernel(row.platform, work.kernel).time(work.elements, work.rows, 1)
        published = row.cycles / clock
        yield Compared(
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
    works = work_of(row.graph(), device, 1, row.precision)
    return next(work for work in works if work.group.unit is not Unit.DMA)


def summarise(name: str, rows: Sequence[Compared], *, held: bool = True) -> Summary:
    """Median and ninetieth percentile of the errors' sizes, and the order of clearly different pairs.

    `held`: whether the rows are held to the targets. Only left-out models make pairs.
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


def summaries(models: Sequence[Compared], plain: Sequence[Compared]) -> tuple[Summary, ...]:
    """All models and those without a remark, then for comparison each platform, and `plain` predictions.

    `plain` are those of `same_selection`.
    """
    platforms = dict.fromkeys(row.platform for row in models)
    return (
        summarise("all rows of models", models),
        summarise("without marked rows", [row for row in models if not row.remark]),
        *(
            summarise(f"on {name}", [row for row in models if row.platform == name], held=False)
            for name in platforms
        ),
        summarise("boxes on 4000 as on 3720", plain, held=False),
    )
