"""The distance between two results of one computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TOLERANCE: Final = {"f32": 1e-3, "f16": 5e-2, "bf16": 1e-1}
"""Largest relative difference that counts as the same result, by the precision of the arithmetic."""

# An output's tiny values are noise beside its large ones: a relative difference uses at least this share of
# the largest magnitude.
_FLOOR: Final = 1e-3


@dataclass(frozen=True)
class Difference:
    """`value` against `reference`: largest absolute and relative difference, NaN where only one is NaN.

    `relative` uses the reference's magnitude at that place, but at least a share of its largest one.
    `identical`: every bit is the same; two equal NaNs also are.
    """

    absolute: float
    relative: float
    identical: bool

    def within(self, tolerance: float) -> bool:
        """Return whether both count as the same result."""
        return self.identical or self.relative <= tolerance  # False for NaN


@dataclass(frozen=True)
class Comparison:
    """The differences of all outputs by name, and how much of a relative one rounding explains."""

    differences: Mapping[str, Difference]
    tolerance: float

    @property
    def beyond(self) -> list[str]:
        """The outputs that are not the same result."""
        return [
            name for name, difference in self.differences.items() if not difference.within(self.tolerance)
        ]

    @property
    def identical(self) -> bool:
        """Whether every bit is the same."""
        return all(difference.identical for difference in self.differences.values())


def compare(value: npt.NDArray[Any], reference: npt.NDArray[Any], *, floor: float = _FLOOR) -> Difference:
    """Return the difference of two arrays; raise `ValueError` if shape or type differ.

    `floor` is the minimum share of the largest magnitude for a relative difference.
    """
    if value.shape != reference.shape or value.dtype != reference.dtype:
        raise ValueError(
            f"{value.dtype} {list(value.shape)} against {reference.dtype} {list(reference.shape)}"
        )
    if value.tobytes() == reference.tobytes():
        return Difference(0.0, 0.0, True)
    ours, theirs = value.astype(np.float64), reference.astype(np.float64)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    finite = np.abs(theirs[np.isfinite(theirs)])
    least = max(floor * float(finite.max(initial=0.0)), np.finfo(np.float64).tiny)
    # infinity minus or divided by infinity is NaN: ignored where both are the same, elsewhere rightly out of
    # any tolerance
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(ours - theirs))
        relative = np.where(same, 0.0, gap / np.maximum(np.abs(theirs), least))
    return Difference(float(gap.max()), float(relative.max()), False)
