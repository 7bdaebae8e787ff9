"""A point of a `bench scale` curve."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """The cost of each of `size` units; without `judged` the curve is a peer's, shown beside ours."""

    cost: str
    size: int
    value: float
    unit: str
    judged: bool = True
