"""The page of a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from softnpu.tools.compare.opening import Request
from softnpu.tools.compare.page import filters
from softnpu.tools.compare.show import Shown
from softnpu.tools.compare.statistics import type_name
from softnpu.tools.report import plots
from softnpu.tools.report.drawing import KINDS, draw
from softnpu.tools.report.gathering import Gathered
from softnpu.tools.shared.console import format_bytes, format_time
from softnpu.tools.shared.pages import rendering


def write_page(gathered: Gathered, request: Request, path: Path) -> None:
    """Write the report. Raise `ToolError` without jinja2 or matplotlib, and `OSError`."""
    shown = Shown(
        str(request.model), request, gathered.sides, gathered.tolerances, gathered.outcome, reduced=None
    )
    drawing = draw(gathered.model)
    used = {spot.series for spot in drawing.spots}
    values: dict[str, Any] = {
        "g": gathered,
        "name": request.model.name,
        "title": gathered.model.get_friendly_name(),
        "shown": shown,
        "drawing": drawing,
        "kinds": [(number, kind) for number, kind in enumerate(KINDS, 1) if number in used],
        "inputs": [
            (port.names[0], type_name(port.type), _extents(port.shape))
            for port in gathered.sides.candidate.inputs()
        ],
        "outputs": [
            (row.name, row.statistics.type, "x".join(map(str, row.statistics.shape)) or "scalar")
            for row in gathered.outcome.outputs
        ],
        "by_kind": plots.time_by_kind(gathered),
        "by_layer": plots.time_by_layer(gathered),
        "roofline": plots.roofline(gathered),
        "layer_total": sum(layer.seconds for layer in gathered.layers) or 1.0,
        "when": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    formats = {"size": format_bytes, "time": format_time, "short": short, **filters()}
    rendering.write(path, "report.html", values, **formats)


def _extents(shape: Any) -> str:
    return "x".join(map(str, shape)) or "scalar"


def short(number: float) -> str:
    """Return `1.23 G`: three digits and a prefix."""
    for prefix in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {prefix}".strip()
        number /= 1000
    return f"{number:.3g} T"
