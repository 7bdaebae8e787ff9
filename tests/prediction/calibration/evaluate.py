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
from tests.prediction.calibration.architectures import FAMILIES
from tests.prediction.calibration.baseline import baseline_us
from tests.prediction.calibration.measurements import WorkloadRow

LeftOut = Mapping[str, Calibration]
"""The factors fitted without each family."""
CLEARLY: Final = 1.3
"""Measurements that differ by less form no pair: such a difference decides nothing."""
MEDIAN, P90, ORDERED, OFF = 0.22, 0.55, 0.94, 0.05
"""Targets for the predictions of models; `OFF`: how far the share in the bands may be from the claim."""
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
    host: str
    published_us: float
    predicted_us: float
    in_band: bool | None
    error: float
    left_out: bool
    remark: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of many rows. `pairs` differ clearly, `ordered` are those in the right order.

    `covered`: the share within the bands, each computed from the other families. `met`: whether targets are
    met; None for rows shown for comparison only.
    """

    name: str
    rows: int
    median: float
    p90: float
    pairs: int
    ordered: float | None
    covered: float | None
    met: bool | None


def compare_models(cases: Sequence[fit.Case], left_out: LeftOut) -> tuple[Compared, ...]:
    """Predict each row of a model with the factors fitted without its family."""
    bands = {name: fit.spread([case for case in cases if case.family != name], left_out) for name in FAMILIES}
    found = []
    for case in cases:
        by, band = left_out[case.family], bands[case.family]
        ratio = case.row.us / case.predicted_us(by, anywhere=True)
        found.append(_compared(case, case.predicted_us(by), in_band=bool(band.low <= ratio <= band.high)))
    return tuple(found)


def compare_baseline(cases: Sequence[fit.Case]) -> tuple[Compared, ...]:
    """Compare each row with a prediction from MACs and bytes alone: shows the worth of the details."""
    return tuple(_compared(case, us) for case, us in zip(cases, baseline_us(cases), strict=True))


def _compared(case: fit.Case, predicted_us: float, in_band: bool | None = None) -> Compared:
    row = case.row
    return Compared(
        id=row.model,
        kind="latency" if row.latency else "throughput",
        platform=row.platform,
        host=row.host,
        precision=row.precision,
        published=f"{row.published:g} {row.unit}",
        published_us=row.us,
        predicted_us=predicted_us,
        in_band=in_band,
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
        host="",
        precision=row.precision,
        published=f"{row.cycles} cycles",
        published_us=published,
        predicted_us=predicted,
        in_band=None,
        error=predicted / published - 1,
        left_out=False,
        remark="",
    )


def _workload(row: WorkloadRow, device: Device) -> Work:
    # the rows of NPU 5 are software kernels, even for operations that its DPU has
    device = replace(device, native=frozenset())
    works = work_of(row.graph(), device, 1)
    return next(work for work in works if work.group.unit is not Unit.DMA)


def summarise(name: str, rows: Sequence[Compared], *, held: bool = True, bands: bool = False) -> Summary:
    """Return median and 90th percentile of absolute errors, and the order of clearly different pairs.

    `held`: whether the rows are held to the targets, `bands`: to that of the bands as well. Only left-out
    models form pairs.
    """
    errors = np.array([abs(row.error) for row in rows])
    median, p90 = float(np.median(errors)), float(np.percentile(errors, 90))
    pairs = combinations([row for row in rows if row.left_out], 2)
    right = [_ordered(one, other) for one, other in pairs if _are_pair(one, other)]
    ordered = sum(right) / len(right) if right else None
    known = [row.in_band for row in rows if row.in_band is not None]
    covered = sum(map(bool, known)) / len(known) if known else None
    met = median <= MEDIAN and p90 <= P90 and (ordered is None or ordered >= ORDERED)
    met = met and (not bands or (covered is not None and abs(covered - fit.COVERED) <= OFF))
    return Summary(
        name=name,
        rows=len(rows),
        median=median,
        p90=p90,
        pairs=len(right),
        ordered=ordered,
        covered=covered,
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
    """Summarise all models, those without a remark, parts of these, and the simpler prediction."""
    models = compare_models(cases, left_out)
    plain = compare_baseline(cases)
    kinds = dict.fromkeys((row.platform, row.precision) for row in models)

    def part(rows: Sequence[Compared], kind: tuple[str, str]) -> list[Compared]:
        return [row for row in rows if (row.platform, row.precision) == kind and not row.remark]

    return (
        summarise("all rows of models", models, bands=True),
        summarise("without marked rows", [row for row in models if not row.remark]),
        *(summarise(f"on {kind[0]} in {kind[1]}", part(models, kind), held=False) for kind in kinds),
        *(
            summarise(f"the family of {names[0]}", [row for row in models if row.id in names], held=False)
            for names in FAMILIES.values()
        ),
        summarise(
            "GMACs and bytes, without marked rows", [row for row in plain if not row.remark], held=False
        ),
        *(
            summarise(f"GMACs and bytes, on {kind[0]} in {kind[1]}", part(plain, kind), held=False)
            for kind in kinds
        ),
    )
