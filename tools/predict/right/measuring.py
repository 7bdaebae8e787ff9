"""One tensor in f16 against the same in f32: their distance, and values that f16 cannot hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.tools.compare.statistics import F16_LARGEST
from softnpu.tools.predict.right.result import Error

Array = npt.NDArray[Any]

SMALLEST_NORMAL: Final = 2.0**-14
"""Of f16: smaller numbers have fewer bits."""

NOTHING: Final = Error(0.0, 0.0)
_INFINITE: Final = Error(math.inf, math.inf)


@dataclass(frozen=True)
class Extent:
    """The largest finite magnitude of a tensor in f32, its place, and the count beyond f16."""

    largest: float
    index: tuple[int, ...]
    beyond: int
    elements: int

    @property
    def overflows(self) -> bool:
        """Whether f16 cannot hold it."""
        return self.beyond > 0

    @property
    def vanishes(self) -> bool:
        """Whether a non-zero tensor is entirely zero or subnormal in f16."""
        return 0 < self.largest < SMALLEST_NORMAL


def extent_of(reference: Array) -> Extent:
    """Return the extent of a tensor in f32."""
    if not reference.size:
        return Extent(0.0, (), 0, 0)
    flat = reference.reshape(-1)
    lowest, highest = int(np.argmin(flat)), int(np.argmax(flat))
    place = highest if flat[highest] >= -flat[lowest] else lowest
    largest, beyond = abs(float(flat[place])), 0
    if not largest <= F16_LARGEST:  # also of NaN
        magnitudes = np.abs(flat)
        finite = np.where(np.isfinite(magnitudes), magnitudes, 0)
        beyond = int(np.count_nonzero(finite > F16_LARGEST))
        place = int(np.argmax(finite))
        largest = float(finite[place])
    index = tuple(int(at) for at in np.unravel_index(place, reference.shape))
    return Extent(largest, index, beyond, reference.size)


def error_of(value: Array, reference: Array, floor: float = 0.0) -> Error:
    """Return the distance of `value` from `reference`; infinite if only `reference` is finite somewhere.

    Magnitudes below `floor` count as that. Where `reference` is NaN nothing is right or wrong.
    """
    if value.shape != reference.shape:
        return _INFINITE
    if reference.dtype.kind != "f":
        share = float(np.count_nonzero(value != reference)) / max(1, reference.size)
        return Error(share, share)
    ours, theirs = (np.ascontiguousarray(each, np.float32).reshape(-1) for each in (value, reference))
    if not ours.size:
        return NOTHING
    with np.errstate(over="ignore", invalid="ignore"):
        gap = ours - theirs
        squares = float(np.dot(gap, gap))
    if not math.isfinite(squares):
        return _of_extremes(ours, theirs, floor)
    peak = _magnitude(gap)
    whole = max(_norm(theirs), floor * math.sqrt(ours.size))
    return _shares(math.sqrt(squares), whole, peak, max(_magnitude(theirs), floor))


def nan_of(reference: Array) -> int:
    """Count the elements that are no number."""
    return int(np.count_nonzero(np.isnan(reference))) if reference.dtype.kind == "f" else 0


def worse(one: Error, other: Error) -> Error:
    """Return the larger mean and the larger peak."""
    return Error(max(one.mean, other.mean), max(one.peak, other.peak))


def _of_extremes(ours: Array, theirs: Array, floor: float) -> Error:
    """Do the same for squares beyond f32, and infinities: those of f32 are 65504 in f16 or infinite."""
    same = (ours == theirs) | np.isnan(theirs)
    same |= np.isinf(theirs) & (np.sign(ours) == np.sign(theirs)) & (np.abs(ours) >= F16_LARGEST)
    if bool((~np.isfinite(ours) & ~same).any()):
        return _INFINITE
    left = ~same
    exact = theirs.astype(np.float64)
    gap = np.where(left, ours, 0).astype(np.float64) - np.where(left, exact, 0)
    finite = np.where(np.isfinite(exact), exact, 0)
    if not np.isfinite(gap).all():
        return _INFINITE
    whole = max(math.sqrt(float(finite @ finite)), floor * math.sqrt(ours.size))
    largest = max(float(np.abs(finite).max()), floor)
    return _shares(math.sqrt(float(gap @ gap)), whole, float(np.abs(gap).max()), largest)


def _shares(gap: float, whole: float, peak: float, largest: float) -> Error:
    if peak == 0:
        return NOTHING
    return Error(gap / whole, peak / largest) if whole and largest else _INFINITE


def _norm(values: Array) -> float:
    squares = float(np.dot(values, values))
    if not math.isfinite(squares) or squares < 1e-30:
        squares = float(np.dot(values.astype(np.float64), values.astype(np.float64)))
    return math.sqrt(squares)


def _magnitude(values: Array) -> float:
    return max(float(values.max()), -float(values.min()))
