"""A point of a curve of `bench scale`."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """What each of `size` units costs."""

    cost: str
    size: int
    value: float
    unit: str
