"""Fit the calibration to published rows, and again with each family of models left out.

The factors stay near the device's figures: a prior pulls each one back in the logarithm, so that a factor
with few rows is not bent to explain one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from softnpu.emulator.prediction.timing import calibration
from softnpu.emulator.prediction.timing.calibration import Calibration, CalibrationFile, Features, Spread
from softnpu.emulator.prediction.timing.devices import Device, find_device
from softnpu.emulator.prediction.timing.features import copied_bytes, features_of, unit_times, work_of
from softnpu.emulator.prediction.timing.host import HOSTS
from softnpu.emulator.prediction.timing.work import Work
from tests.prediction.calibration.architectures import FAMILIES, FAMILY_OF
from tests.prediction.calibration.measurements import ModelRow

LEFT_OUT: Final = Path(__file__).parent / "data/left_out.json"
_PRIOR: Final = Calibration()
_WIDTHS: Final = {
    "dpu": 0.15,
    "shave_3720": 0.4,
    "shave_4000": 0.4,
    "dma": 0.4,
    "ddr": 0.15,
    "layer_cycles": 0.7,
    "kernel_cycles": 0.7,
    "selection_3720_ns": 3.0,
    "selection_4000_ns": 3.0,
    "latency": 0.05,
    "driver_us": 0.7,
    "call_us": 0.7,
    "copy_gbs": 0.15,
}
"""Logarithm by which a factor may leave its prior for the price of one row that is wrong by `_SCALE`.

Narrow where the device's figure is published and confirmed (MACs and clock by VPUNN's measured workloads, DDR
by language models), wider for interpreted figures, widest for unpublished ones.
"""
COVERED: Final = 0.8
"""Share of measurements that bands are to hold."""
_SCALE: Final = 0.25
_STEPS: Final = (0.4, 0.1, 0.03)
_ROUNDS: Final = 20


@dataclass(frozen=True)
class Case:
    """A row with the uncalibrated times of its model's groups, and its MACs (int8 as halves) and bytes.

    `anywhere` are the times in the platform's usual host, for a user who says nothing about the own one.
    """

    row: ModelRow
    features: Features
    anywhere: Features
    copied_bytes: int
    macs: float
    bytes: int

    @property
    def family(self) -> str:
        """The models that are left out together with this one."""
        return FAMILY_OF[self.row.model]

    def predicted_us(self, by: Calibration, *, anywhere: bool = False) -> float:
        """Return microseconds per inference, as the row counts them."""
        device_us = float((self.anywhere if anywhere else self.features).times(by).sum())
        if not self.row.latency:
            return device_us
        host, alone = HOSTS[self.row.host], self.row.program == "benchmark_app"
        return device_us * by.latency + calibration.host_us(host, self.copied_bytes, by, alone=alone)


def cases(rows: Iterable[ModelRow]) -> tuple[Case, ...]:
    """Return the rows with their features."""
    return tuple(_case(row) for row in rows)


def _case(row: ModelRow) -> Case:
    usual = find_device(row.platform)
    graph = row.graph()
    works = work_of(graph, usual, usual.tiles)
    half = 0.5 if row.precision == "int8" else 1.0
    return Case(
        row,
        _features(works, HOSTS[row.host].on(usual)),
        _features(works, usual),
        copied_bytes(graph),
        half * sum(work.macs for work in works),
        sum(work.weights_bytes + work.io_bytes for work in works),
    )


def _features(works: Sequence[Work], device: Device) -> Features:
    return features_of(works, unit_times(works, device, device.tiles), device, device.tiles)


def fit(known: Sequence[Case]) -> Calibration:
    """Return the factors that explain these rows best; rows not to be fitted are ignored."""
    used = [case for case in known if case.row.fitted]
    weights = _weights(used)

    def loss(by: Calibration) -> float:
        errors = np.array([np.log(case.predicted_us(by) / case.row.us) for case in used])
        size = np.abs(errors) / _SCALE
        rows = np.where(size < 1, size**2 / 2, size - 0.5)  # Huber: an outlier counts once, not squared
        return float((rows * weights).sum()) + _prior_loss(by)

    return _descend(loss)


def _weights(used: Sequence[Case]) -> calibration.Floats:
    """Weight each model equally, however many rows it has; weights sum to the number of rows."""
    models = [case.row.model for case in used]
    raw = np.array([1.0 / np.sqrt(models.count(model)) for model in models])
    return np.asarray(raw * len(raw) / raw.sum())


def _prior_loss(by: Calibration) -> float:
    return sum(
        float(np.log(getattr(by, name) / getattr(_PRIOR, name)) / width) ** 2 / 2
        for name, width in _WIDTHS.items()
    )


def _descend(loss: Callable[[Calibration], float]) -> Calibration:
    """Step up and down in each factor with shrinking steps: few factors need no gradient."""
    best, least = _PRIOR, loss(_PRIOR)
    for step in _STEPS:
        for _ in range(_ROUNDS):
            before = least
            for name in best.__struct_fields__:
                for sign in (1.0, -1.0):
                    value = getattr(best, name) * float(np.exp(sign * step))
                    if name == "latency":
                        value = max(value, 1.0)
                    tried = msgspec.structs.replace(best, **{name: value})
                    tried_loss = loss(tried)
                    if tried_loss < least:
                        best, least = tried, tried_loss
            if before - least < 1e-6:
                break
    return best


def calibrate(rows: Sequence[ModelRow], date: str) -> tuple[CalibrationFile, dict[str, Calibration]]:
    """Fit all rows, and all but those of each family."""
    known = cases(rows)
    left_out = {name: fit([case for case in known if case.family != name]) for name in FAMILIES}
    file = CalibrationFile(
        date=date,
        rows=sum(row.fitted for row in rows),
        calibration=fit(known),
        spread=spread(known, left_out),
    )
    return file, left_out


def spread(known: Iterable[Case], left_out: Mapping[str, Calibration]) -> Spread:
    """Return the band of these rows, each predicted without its family, by weighing families equally.

    A new family is as likely as any of the known ones to have the smallest or largest ratio of all, so the
    ends are further out than the quantiles of the known ones (a conformal interval).
    """
    used = [case for case in known if case.row.fitted]
    families = [case.family for case in used]
    ratios = np.array(
        [case.row.us / case.predicted_us(left_out[case.family], anywhere=True) for case in used]
    )
    weights = np.array([1.0 / families.count(family) for family in families])
    count = len(set(families))
    beyond = ((1 - COVERED) / 2 * (count + 1) - 0.5) / count
    order = np.argsort(ratios)
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp([beyond, 1 - beyond], share, ratios[order])
    return Spread(low=float(low), high=float(high))


def load_left_out() -> dict[str, Calibration]:
    """Return the stored factors fitted without each family."""
    return msgspec.json.decode(LEFT_OUT.read_bytes(), type=dict[str, Calibration])


def encode(fitted: object) -> bytes:
    """Encode factors: one per line, so that diffs are readable."""
    rounded = _rounded(msgspec.to_builtins(fitted))
    return msgspec.json.format(msgspec.json.encode(rounded), indent=2) + b"\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return value
