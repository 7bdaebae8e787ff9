"""The plots of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from softnpu.tools.report.gathering import Gathered, LayerTime
from softnpu.tools.shared.console import format_count, format_time
from softnpu.tools.shared.pages import plotting
from softnpu.tools.shared.pages.rendering import require

_MOST_LAYERS: Final = 20
_UNIT_SERIES: Final = {"DPU": "--series-1", "DMA": "--series-2", "SW": "--series-4"}


def time_by_kind(gathered: Gathered) -> str:
    """Plot bars: the time of all layers of each kind."""
    rows = gathered.by_kind()[:_MOST_LAYERS]
    total = sum(seconds for _, seconds, _ in gathered.by_kind()) or 1.0
    texts = [
        f"{format_time(seconds)}, {seconds / total:.0%}, {format_count(count, 'layer')}"
        for _, seconds, count in rows
    ]
    return _bars(
        [kind for kind, *_ in rows], [seconds for _, seconds, _ in rows], texts, ["--series-1"] * len(rows)
    )


def time_by_layer(gathered: Gathered) -> str:
    """Plot bars: the slowest layers, in the colour of the unit that a real device would use."""
    rows = sorted(gathered.layers, key=lambda layer: -layer.seconds)[:_MOST_LAYERS]
    colours = [_UNIT_SERIES.get(layer.unit, "--series-3") for layer in rows]
    return _bars(
        [layer.name for layer in rows],
        [layer.seconds for layer in rows],
        [format_time(layer.seconds) for layer in rows],
        colours,
    )


def roofline(gathered: Gathered) -> str:
    """Plot the layers below the two lines that bound them; skip those without an operation count."""
    return plotting.both(lambda width: _roofline(gathered, width))


def _roofline(gathered: Gathered, width: float) -> str:
    counted = [layer for layer in gathered.layers if layer.work.operations and layer.seconds]
    roof = gathered.roof
    figure, axes = plotting.figure(width, 4.2)
    ends = _ends(counted, roof.ridge)
    axes.plot(
        [ends[0], roof.ridge, ends[1]],
        [roof.at(ends[0]) / 1e9, roof.operations / 1e9, roof.operations / 1e9],
        color=plotting.COLOURS["--soft"],
    )
    total = sum(layer.seconds for layer in counted) or 1.0
    axes.scatter(
        [layer.work.intensity for layer in counted],
        [layer.rate / 1e9 for layer in counted],
        s=[12 + 240 * layer.seconds / total for layer in counted],
        color=plotting.COLOURS["--series-1"],
        alpha=0.65,
        linewidths=0,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):  # between powers of ten labels would overlap
        axis.set_minor_formatter(require("matplotlib.ticker", "--output").NullFormatter())
    axes.grid(True, color=plotting.COLOURS["--line"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("operations for each byte")
    axes.set_ylabel("10⁹ operations a second")
    return plotting.svg(figure)


def _ends(counted: Sequence[LayerTime], ridge: float) -> tuple[float, float]:
    intensities = [layer.work.intensity for layer in counted]
    return min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 3


def _bars(names: Sequence[str], values: Sequence[float], texts: Sequence[str], colours: Sequence[str]) -> str:
    return plotting.both(lambda width: _bars_of(width, names, values, texts, colours))


def _bars_of(
    width: float, names: Sequence[str], values: Sequence[float], texts: Sequence[str], colours: Sequence[str]
) -> str:
    is_narrow = width < plotting.WIDE
    names = cut(names, 14 if is_narrow else 38)
    texts = [text.partition(",")[0] for text in texts] if is_narrow else texts
    figure, axes = plotting.figure(width, 0.5 + 0.27 * len(names))
    places = range(len(names))
    axes.barh(
        places,
        [value * 1e3 for value in values],
        color=[plotting.COLOURS[colour] for colour in colours],
        height=0.7,
    )
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    longest = max(values, default=1.0) * 1e3
    axes.set_xlim(0, longest * (1.8 if is_narrow else 1.3))
    for place, value, text in zip(places, values, texts, strict=True):
        axes.text(
            value * 1e3 + longest * 0.01,
            place,
            text,
            va="center",
            color=plotting.COLOURS["--soft"],
            fontsize=9,
        )
    axes.set_xlabel("ms")
    axes.tick_params(axis="y", length=0)
    return plotting.svg(figure)


def cut(names: Sequence[str], most: int) -> list[str]:
    """Cut long names on the side where more of them stay different."""
    ends = [name if len(name) <= most else f"…{name[1 - most :]}" for name in names]
    beginnings = [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
    return max(ends, beginnings, key=lambda some: len(set(some)))
