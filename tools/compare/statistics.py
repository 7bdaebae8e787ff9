"""How two tensors differ: largest differences, cosine similarity, ULPs, and non-finite numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.tools.compare.tolerances import FLOOR, Tolerances
from softnpu.tools.shared.comparison import Difference, compare

Array = npt.NDArray[Any]

F16_LARGEST: Final = 65504.0
"""The largest f16 number: anything above overflows."""

_NOTHING: Final = Difference(float("inf"), float("inf"), False)


@dataclass(frozen=True)
class Numbers:
    """Counts of elements that are NaN, infinite, or finite and too large for f16."""

    nan: int = 0
    infinite: int = 0
    overflow: int = 0

    def __bool__(self) -> bool:
        return bool(self.nan or self.infinite or self.overflow)


@dataclass(frozen=True)
class Statistics:
    """One tensor against its reference.

    `type` is the coarser of both element types, `ulps` the largest distance of two finite elements in units
    of its last place (None for integers). `mismatch` says why nothing was measured: the shapes differ.
    """

    type: str
    shape: tuple[int, ...]
    difference: Difference
    cosine: float
    ulps: int | None
    ours: Numbers
    theirs: Numbers
    mismatch: str = ""

    def within(self, tolerances: Tolerances) -> bool:
        """Return whether both count as the same result."""
        if self.difference.identical:
            return True
        absolute, relative = tolerances.of(self.type)
        return self.difference.absolute <= absolute or self.difference.relative <= relative


def measure(value: Array, reference: Array) -> Statistics:
    """Return the statistics of `value` against `reference`; two float types compare in the coarser one."""
    common = _common(value.dtype, reference.dtype)
    numbers = numbers_of(value), numbers_of(reference)
    if value.shape != reference.shape:
        mismatch = f"shape {list(value.shape)} against {list(reference.shape)}"
        return Statistics(type_name(common), value.shape, _NOTHING, 0.0, None, *numbers, mismatch)
    with np.errstate(over="ignore"):  # overflow to infinity is counted
        ours, theirs = value.astype(common, copy=False), reference.astype(common, copy=False)
    return Statistics(
        type=type_name(common),
        shape=value.shape,
        difference=compare(ours, theirs, floor=FLOOR),
        cosine=cosine(ours, theirs),
        ulps=ulps(ours, theirs),
        ours=numbers[0],
        theirs=numbers[1],
    )


def worst(by_step: Sequence[Statistics], tolerances: Tolerances) -> int:
    """Return the index of the first step out of tolerance, else of the largest difference."""
    for number, each in enumerate(by_step):
        if not each.within(tolerances):
            return number
    return max(range(len(by_step)), key=lambda number: by_step[number].difference.relative)


def cosine(value: Array, reference: Array) -> float:
    """Return the cosine of the angle between both tensors; 1 if both are zero.

    Elements that are not finite in both are left out. NaN if one is finite in only one of them, or none is.
    """
    if np.array_equal(value, reference):
        return 1.0
    ours, theirs = value.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    finite = np.isfinite(ours)
    if not (np.array_equal(finite, np.isfinite(theirs)) and finite.any()):
        return math.nan
    ours, theirs = ours[finite], theirs[finite]
    # scaled first: squares of large f64 numbers overflow
    scales = [float(np.abs(each).max(initial=0.0)) for each in (ours, theirs)]
    if not all(scales):
        return 1.0 if scales[0] == scales[1] else 0.0
    ours, theirs = ours / scales[0], theirs / scales[1]
    return float(np.clip(ours @ theirs / np.sqrt((ours @ ours) * (theirs @ theirs)), -1.0, 1.0))


def ulps(value: Array, reference: Array) -> int | None:
    """Return the largest distance in units in the last place where both are finite; None for integers."""
    if value.dtype.kind != "f":
        return None
    finite = np.isfinite(value) & np.isfinite(reference)
    ours, theirs = _ordered(value[finite]), _ordered(reference[finite])
    gap = np.maximum(ours, theirs) - np.minimum(ours, theirs)
    return int(gap.max(initial=np.uint64(0)))


def numbers_of(value: Array) -> Numbers:
    """Count a tensor's non-finite and overflowing numbers."""
    if value.dtype.kind != "f":
        return Numbers()
    infinite = np.isinf(value)
    large = (np.abs(value) > F16_LARGEST) & ~infinite if value.dtype.itemsize > 2 else np.zeros(1, bool)
    return Numbers(int(np.isnan(value).sum()), int(infinite.sum()), int(large.sum()))


def type_name(type: npt.DTypeLike) -> str:
    """Return OpenVINO's name: `f32`, `i64`, `boolean`."""
    dtype = np.dtype(type)
    return "boolean" if dtype.kind == "b" else f"{dtype.kind}{8 * dtype.itemsize}"


def _common(ours: np.dtype[Any], theirs: np.dtype[Any]) -> np.dtype[Any]:
    if ours.kind == theirs.kind == "f":
        return min(ours, theirs, key=lambda each: each.itemsize)
    return np.result_type(ours, theirs)


def _ordered(value: Array) -> npt.NDArray[np.uint64]:
    """Map the bits of floating-point numbers to integers in the same order."""
    bits = 8 * value.dtype.itemsize
    raw = value.view(f"u{value.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (bits - 1))
    magnitude = raw & np.uint64((1 << (bits - 1)) - 1)
    return np.where(raw & sign, sign - magnitude, sign + magnitude)
