"""Measurements of the loops, for the table at the end of the run and for a file."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

ENV_LOOPS = "SOFTNPU_SOAK_LOOPS"
"""How often the long forms kill and restart (1000)."""
ENV_SESSIONS = "SOFTNPU_SOAK_SESSIONS"
"""How many sessions idle in the long form (1000)."""
ENV_JSON = "SOFTNPU_SOAK_JSON"
"""A file to which the figures are appended as JSON lines."""


class Figure(msgspec.Struct, frozen=True):
    """One figure: the action, the quantity, the values."""

    loop: str
    what: str
    value: str


collected: list[Figure] = []


def note(loop: str, what: str, value: object) -> None:
    """Add a figure to the table."""
    figure = Figure(loop, what, str(value))
    collected.append(figure)
    path = os.environ.get(ENV_JSON)
    if path:
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(figure) + b"\n")


def note_times(loop: str, what: str, seconds: Sequence[float]) -> None:
    """Add the median and maximum of times."""
    middle, most = statistics.median(seconds), max(seconds)
    note(loop, what, f"{middle * 1e3:.1f} ms median, {most * 1e3:.1f} ms at most, of {len(seconds)}")


def loops() -> int:
    """Return how often the long forms loop."""
    return int(os.environ.get(ENV_LOOPS, "1000"))


def sessions() -> int:
    """Return how many sessions idle in the long form."""
    return int(os.environ.get(ENV_SESSIONS, "1000"))
