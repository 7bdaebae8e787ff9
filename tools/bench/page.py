"""A benchmark run as an HTML page: every figure with its verdict, and plots of targets and curves."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from softnpu.tools.bench import targets, words
from softnpu.tools.bench.result import Measurement
from softnpu.tools.shared.pages import plotting, rendering

_COLUMNS: Final = 3


def check(path: Path, option: str) -> None:
    """Reject an unwritable page path before anything is measured."""
    rendering.check_target(option, path)
    rendering.require("matplotlib", option)


def write(rows: Sequence[Measurement], conditions: str, path: Path) -> None:
    """Write the page of figures, measured in these conditions.

    Raise `ToolError` without jinja2 or matplotlib, and `OSError`.
    """
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.bench, []).append(row)
    values: dict[str, Any] = {
        "groups": groups,
        "judged": sum(row.ok is not None for row in rows),
        "missed": [row for row in rows if row.ok is False],
        "targets": _targets(rows),
        "curves": _curves(rows),
        "explained": targets.explained,
        "words": words,
        "when": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": f"{platform.machine()}, {conditions}",
    }
    rendering.write(path, "bench.html", values, number=lambda value: "" if value is None else f"{value:g}")


def cost_of_target(row: Measurement) -> float | None:
    """Return a ratio relative to its target: 1 is just met, more is missed. None without target or peer."""
    if row.ok is None or not row.ratio or not row.target:
        return None
    part = row.ratio / row.target
    more_is_better = row.ok is not (part <= 1) and part != 1
    return 1 / part if more_is_better else part


def _targets(rows: Sequence[Measurement]) -> str:
    """Plot ratios relative to their targets as bars. Empty when no row has one."""
    costs = [(row, cost) for row in rows if (cost := cost_of_target(row)) is not None]
    if not costs:
        return ""
    return plotting.both(lambda width: _bars(costs, width))


def _bars(costs: Sequence[tuple[Measurement, float]], width: float) -> str:
    is_narrow = width < plotting.WIDE
    figure, axes = plotting.figure(width, 0.8 + (0.45 if is_narrow else 0.25) * len(costs))
    colours = ["--series-1" if row.ok else "--series-2" for row, _ in costs]
    places = range(len(costs))
    axes.barh(
        places,
        [cost - 1 for _, cost in costs],
        left=1,
        color=[plotting.COLOURS[colour] for colour in colours],
        height=0.7,
    )
    axes.axvline(1, color=plotting.COLOURS["--soft"], linewidth=1)
    axes.set_yticks(list(places), [_label(row, "\n" if is_narrow else " ") for row, _ in costs], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, min(4.0, max(1.2, *(cost for _, cost in costs)) + 0.1))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("cost, in parts of the target")
    return plotting.svg(figure)


def _label(row: Measurement, gap: str) -> str:
    return f"{row.bench}:{gap}{row.metric},{gap}{row.peer}".replace("OpenVINO CPU", "CPU")


def _curves(rows: Sequence[Measurement]) -> str:
    """Plot each curve: cost per unit against their number. Empty without curves."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.size is not None:
            curves.setdefault((row.metric, row.unit), {})[row.size] = row.value
    if not curves:
        return ""
    return plotting.both(lambda width: _grid(curves, width))


def _grid(curves: Mapping[tuple[str, str], Mapping[int, float]], width: float) -> str:
    columns = _COLUMNS if width == plotting.WIDE else 1
    lines = -(-len(curves) // columns)
    figure, axes = plotting.figure(width * 1.2, 2.2 * lines, columns, lines)
    axes = np.asarray(axes)
    for spot, ((metric, unit), curve) in zip(axes.flat, curves.items(), strict=False):
        _curve(spot, metric, unit, curve)
    for spot in list(axes.flat)[len(curves) :]:
        spot.set_visible(False)
    return plotting.svg(figure)


def _curve(axes: Any, metric: str, unit: str, curve: Mapping[int, float]) -> None:
    axes.plot(
        list(curve), list(curve.values()), color=plotting.COLOURS["--series-1"], marker="o", markersize=4
    )
    axes.set_xscale("log")
    axes.set_ylim(0, max(curve.values()) * 1.15 or 1)
    if min(curve.values()) > 0 and max(curve.values()) > 20 * min(curve.values()):
        axes.set_yscale("log")
        axes.set_ylim(min(curve.values()) / 2, max(curve.values()) * 2)
    axes.set_title(metric, fontsize=9, color=plotting.COLOURS["--ink"])
    axes.set_ylabel(unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(True, color=plotting.COLOURS["--line"], linewidth=0.6)
