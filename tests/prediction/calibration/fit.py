"""Fit the calibration to published rows, and again with each model left out.

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
from softnpu.emulator.prediction.timing.devices import find_device
from softnpu.emulator.prediction.timing.features import features_of, unit_times, work_of
from softnpu.emulator.prediction.timing.work import Precision
from tests.prediction.calibration.architectures import architecture
from tests.prediction.calibration.measurements import ModelRow

LEFT_OUT: Final = Path(__file__).parent / "data/left_out.json"
_PRIOR: Final = Calibration()
_WIDTHS: Final = {
    "dpu": 0.15,
    "shave": 0.4,
    "dma": 0.4,
    "ddr": 0.15,
    "exposed": 0.7,
    "layer_us": 0.7,
    "kernel_us": 0.7,
    "selection_3720_ns": 3.0,
    "selection_4000_ns": 3.0,
    "requantise": 0.4,
    "latency": 0.2,
    "latency_us": 0.7,
}
"""Logarithm by which a factor may leave its prior for the price of one row that is wrong by `_SCALE`.

Narrow where the device's figure is published and confirmed (MACs and clock by VPUNN's measured workloads, DDR
by language models), wider for interpreted figures, widest for unpublished ones.
"""
_SCALE: Final = 0.25
_STEPS: Final = (0.4, 0.2, 0.1, 0.05, 0.02)
_ROUNDS: Final = 60


@dataclass(frozen=True)
class Case:
    """A row with the uncalibrated times of its model's groups.

    `roofline_us` is the lower bound from MACs at the peak rate, or constants, inputs and outputs at DDR's.
    """

    row: ModelRow
    features: Features
    roofline_us: float

    def predicted_us(self, by: Calibration) -> float:
        """Return microseconds per inference, as the row counts them."""
        device_us = float(self.features.times(by).sum())
        return calibration.latency_us(device_us, by) if self.row.latency else device_us


def cases(rows: Iterable[ModelRow]) -> tuple[Case, ...]:
    """Return the rows with their features."""
    return tuple(_case(row) for row in rows)


def _case(row: ModelRow) -> Case:
    device = find_device(row.platform)
    works = work_of(architecture(row.model), device, device.tiles, row.precision)
    units = unit_times(works, device, device.tiles)
    peak = device.macs.value * device.tiles * device.clock.value
    computing = sum(work.macs for work in works) / (peak if row.precision is Precision.INT8 else peak / 2)
    memory = sum(work.weights_bytes + work.io_bytes for work in works) / device.ddr.value / 1000
    return Case(row, features_of(works, units, device, device.tiles, row.precision), max(computing, memory))


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
                    if name == "exposed":
                        value = min(value, 1.0)
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
    """Fit all rows, and all but those of each model."""
    known = cases(rows)
    models = dict.fromkeys(row.model for row in rows)
    left_out = {name: fit([case for case in known if case.row.model != name]) for name in models}
    ratios = [case.row.us / case.predicted_us(left_out[case.row.model]) for case in known if case.row.fitted]
    low, high = np.percentile(ratios, [10, 90])
    file = CalibrationFile(
        date=date,
        rows=sum(row.fitted for row in rows),
        calibration=fit(known),
        spread=Spread(low=float(low), high=float(high)),
    )
    return file, left_out


def load_left_out() -> dict[str, Calibration]:
    """Return the stored factors fitted without each model."""
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
