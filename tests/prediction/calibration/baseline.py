"""A prediction that knows only MACs and bytes: what the model of the device has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from tests.prediction.calibration.fit import Case

_CALL_US: Final = (0.0, 100.0, 200.0, 400.0, 800.0)
_MACS_A_US: Final = np.geomspace(1e5, 2e7, 24)
_BYTES_A_US: Final = np.geomspace(1e3, 2e5, 24)


def fit_baseline(known: Sequence[Case]) -> tuple[float, float, float]:
    """Return the fixed time, the rate of MACs and that of bytes with the least mean error."""
    macs = np.array([case.macs for case in known])
    bytes_ = np.array([case.bytes for case in known], dtype=np.float64)
    fixed = np.array([case.row.latency for case in known], dtype=np.float64)
    us = np.array([case.row.us for case in known])

    def error(rates: tuple[float, float, float]) -> float:
        call, one, other = rates
        predicted = fixed * call + macs / one + bytes_ / other
        return float(np.mean(np.abs(np.log(predicted / us))))

    return min(product(_CALL_US, _MACS_A_US, _BYTES_A_US), key=error)


def baseline_us(cases: Sequence[Case]) -> list[float]:
    """Predict each row with rates fitted to the other families on its platform."""
    rates: dict[tuple[str, str], tuple[float, float, float]] = {}
    found = []
    for case in cases:
        key = case.row.platform, case.family
        if key not in rates:
            others = [
                each
                for each in cases
                if each.row.fitted and each.row.platform == key[0] and each.family != key[1]
            ]
            rates[key] = fit_baseline(others)
        call, one, other = rates[key]
        found.append(float(call * case.row.latency + case.macs / one + case.bytes / other))
    return found
