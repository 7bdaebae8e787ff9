"""Which layers cause wrong outputs, and which only propagate the error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from softnpu.tools.predict.right.measuring import Extent
from softnpu.tools.predict.right.points import Points
from softnpu.tools.predict.right.result import Error, Trouble

MEAN: Final = 0.05
"""The largest mean error of a tensor that counts as right. f16 has 11 bits: 0.0005 for one rounding, and
0.003 at the end of the deep models that were tried."""

PEAK: Final = 0.15
"""The largest error of one element, in parts of the largest magnitude, that counts as right."""

DIFFERING: Final = 0.05
"""The largest share of integers that may differ: these are positions and counts, which near ties change."""


@dataclass(frozen=True)
class Seen:
    """One observed point: its f32 extent in the sample where it is largest, its worst error."""

    extent: Extent
    sample: int
    error: Error


def is_wrong(error: Error) -> bool:
    """Return whether a tensor counts as another result; a NaN error does."""
    return not (error.mean <= MEAN and error.peak <= PEAK)


@dataclass(frozen=True)
class Findings:
    """The points with trouble by key, in execution order: those that reach a wrong output, and others."""

    reaching: dict[str, Trouble]
    without_effect: dict[str, Trouble]

    @property
    def causes(self) -> list[str]:
        """The points whose trouble did not come with their inputs."""
        return [key for key, trouble in self.reaching.items() if trouble is not Trouble.INHERITS]


def suspects(points: Points, seen: Mapping[str, Seen], wrong_outputs: set[int]) -> list[str]:
    """Return the points leading to a wrong output whose own error must be known, in execution order."""
    wrong = _wrong(seen)
    reaching = points.reaching(wrong, wrong_outputs)
    return [
        key
        for key in points.points
        if key in reaching and not seen[key].extent.overflows and not _has_lost_source(points, seen, key)
    ]


def findings(
    points: Points, seen: Mapping[str, Seen], own: Mapping[str, Error], wrong_outputs: set[int]
) -> Findings:
    """Return each point's trouble. `own` are the errors of `suspects`; a missing one counts as small."""
    wrong = _wrong(seen)
    reaching = points.reaching(wrong, wrong_outputs)
    decided = {key: _trouble(points, seen, own, key) for key in points.points if key in reaching}
    overflowing = {
        key: Trouble.OVERFLOWS
        for key in points.points
        if key in seen and key not in reaching and seen[key].extent.overflows
    }
    return Findings(decided, overflowing)


def _wrong(seen: Mapping[str, Seen]) -> set[str]:
    return {key for key, each in seen.items() if each.extent.overflows or is_wrong(each.error)}


def _has_lost_source(points: Points, seen: Mapping[str, Seen], key: str) -> bool:
    """Return whether a layer's input does not fit f16: the consequences are not its own."""
    sources = [seen[each] for each in points.points[key].reads if each in seen]
    return any(each.extent.overflows or (each.extent.vanishes and is_wrong(each.error)) for each in sources)


def _trouble(points: Points, seen: Mapping[str, Seen], own: Mapping[str, Error], key: str) -> Trouble:
    extent = seen[key].extent
    if extent.overflows:
        return Trouble.OVERFLOWS
    if _has_lost_source(points, seen, key):
        return Trouble.INHERITS
    if key in own and is_wrong(own[key]):
        return Trouble.VANISHES if extent.vanishes else Trouble.CANCELS
    wrong = _wrong(seen)
    inherits = any(each in wrong for each in points.points[key].reads)
    return Trouble.INHERITS if inherits else Trouble.ACCUMULATES
