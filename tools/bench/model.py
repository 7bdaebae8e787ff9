"""The model of a benchmark: a file, or a name from the catalogue, with its static shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from softnpu.tools.demo.digits import model_path
from softnpu.tools.models.catalogue import CATALOGUE
from softnpu.tools.models.fetch import get
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.inputs import parse_shapes

DIGITS = "digits"
"""The demonstration's small model, which needs no download."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class BenchModel:
    """`path` is what OpenVINO reads, `shapes` are by input name."""

    name: str
    path: Path
    shapes: Shapes


def find_model(text: str, options: Sequence[str] | None) -> BenchModel:
    """Find the model of a path, `digits`, or a name from `softnpu models ls`, fetched if missing.

    `options` are those of `--shape`. Raise `ToolError` for any other text.
    """
    path, shapes = Path(text), parse_shapes(options or ())
    if path.is_file():
        return BenchModel(path.stem, path, shapes)
    if text == DIGITS:
        return BenchModel(text, model_path(), shapes)
    entry = CATALOGUE.get(text)
    if entry is None:
        raise UsageError(
            f"model {text}",
            found="no such file",
            expected=f"a file, or one of {', '.join(sorted([DIGITS, *CATALOGUE]))}",
        )
    return BenchModel(text, get(text), {**entry.shapes, **shapes})
