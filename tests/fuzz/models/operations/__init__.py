"""The catalogue of operations for graphs, by family. An entry is a function that adds one operation."""

from __future__ import annotations

from tests.fuzz.models.operations import (
    control,
    detection,
    elementwise,
    gathering,
    layers,
    quantised,
    recurrent,
    reductions,
    shapes,
    signal,
    slicing,
    states,
)
from tests.fuzz.models.operations.table import Entry, Table

FAMILIES: dict[str, Table] = {
    "element-wise": elementwise.TABLE,
    "reductions": reductions.TABLE,
    "layers": layers.TABLE,
    "shapes": shapes.TABLE,
    "slicing": slicing.TABLE,
    "gathering": gathering.TABLE,
    "quantised": quantised.TABLE,
    "recurrent": recurrent.TABLE,
    "signal": signal.TABLE,
    "detection": detection.TABLE,
    "control flow": control.TABLE,
    "states": states.TABLE,
}
WEIGHTS = {
    "element-wise": 26, "reductions": 10, "layers": 14, "shapes": 18, "slicing": 10, "gathering": 10,
    "quantised": 9, "recurrent": 4, "signal": 3, "detection": 4, "control flow": 4, "states": 4,
}  # fmt: skip
"""The relative frequency of a family."""

__all__ = ["FAMILIES", "WEIGHTS", "Entry", "Table"]
