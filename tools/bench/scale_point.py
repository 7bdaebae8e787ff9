"""A point of a curve of `bench scale`."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """What each of `size` units costs; without `judged` the curve is that of a peer, shown beside ours."""

    cost: str
    size: int
    value: float
    unit: str
    judged: bool = True
