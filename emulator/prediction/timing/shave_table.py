"""The SHAVE's published table: the time of a software kernel on one SHAVE."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

OLDER_FACTOR: Final = 5.0
"""Time on 3720 relative to 4000, for kernels that only the newer table lists; see `data/sources.md`."""
OLDER_MOVES: Final = 2.0
"""The same, for kernels that only move data: words of CMX are 16 bytes on 3720, 32 on 4000 (VPUNN)."""
_MOVES: Final = frozenset(("MemPermute", "Gather", "Interpolate"))
_NAMES: Final[Mapping[str, str]] = {
    "HSwish": "HSwish",
    "ReduceMin": "ReduceMax",
    "ReduceL2": "ReduceSum",
    "ReduceProd": "ReduceSum",
    "GatherElements": "Gather",
    "GatherND": "Gather",
    "Embedding": "Gather",
    "SoftMax": "Softmax",
    "GroupNormalization": "MVN",
    "RMS": "MVN",
    "LayerNormalization": "MVN",
    "RMSNorm": "MVN",
    "Atan": "Cos",
    "Tan": "Cos",
    "Mod": "FloorMod",
    "HardSwish": "HSwish",
    "GLU": "Swish",
    "Relu6": "Clamp",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Microseconds of a kernel on one SHAVE. `known` is False for a kernel that no table lists."""

    us_per_element: float
    us_per_row: float
    us_fixed: float
    source: str
    known: bool = True

    def time(self, elements: float, rows: float, shaves: int) -> float:
        """Return the microseconds for a number of f16 elements and rows, shared by the SHAVEs."""
        return (self.us_per_element * elements + self.us_per_row * rows) / shaves + self.us_fixed


@cache
def _tables() -> Mapping[str, Mapping[str, Kernel]]:
    text = resources.files(__package__).joinpath("data/shave.csv").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Kernel]] = {"3720": {}, "4000": {}}
    for row in csv.DictReader(text.splitlines()):
        tables[row["platform"]][row["kernel"]] = Kernel(
            us_per_element=float(row["us_a_step"]) / float(row["elements_a_step"]),
            us_per_row=float(row["us_a_row"]),
            us_fixed=float(row["us_fixed"]),
            source=f"VPUNN SHAVE table {row['source']}",
            known=row["kernel"] != "default",
        )
    for name, kernel in tables["4000"].items():
        factor = OLDER_MOVES if name in _MOVES else OLDER_FACTOR
        tables["3720"].setdefault(
            name,
            Kernel(
                kernel.us_per_element * factor,
                kernel.us_per_row * factor,
                kernel.us_fixed,
                f"{kernel.source}, times {factor:g} for 3720",
            ),
        )
    return {**tables, "5010": tables["4000"]}


def find_kernel(platform: str, type: str) -> Kernel:
    """Return the kernel of an operation, or the default one of the table."""
    table = _tables()[platform]
    return table.get(type) or table.get(_NAMES.get(type, ""), table["default"])
