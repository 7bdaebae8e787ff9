"""Presentation of figures: one document for programs, one screen for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softnpu.tools.bench import counter_names, counter_tables, targets, words
from softnpu.tools.bench.result import Conditions, Figures, Measurement
from softnpu.tools.shared.console import format_count, out, print_json

_LABEL = 16
"""Columns that a figure's name has at least."""
_GAPS = 6
"""Columns between those of a line, and before them."""
_STYLES = {None: "", True: "green", False: "red"}
_UNKNOWN = "not explained"


def show(
    measurements: Iterable[Measurement], json: bool, conditions: Conditions, *, only_judged: bool
) -> list[Measurement]:
    """Print and return all measurements, even if a later one fails; for people perhaps only those judged."""
    rows: list[Measurement] = []
    try:
        rows.extend(measurements)
    finally:
        if json:
            print_json(Figures(rows, conditions))
        elif rows:
            out.print(screen(rows, conditions, only_judged=only_judged))
    return rows


def sentence(row: Measurement) -> str:
    """Return a figure with its target in one line."""
    value = f"{row.value:g} {row.unit}" if row.ratio is None else f"{row.ratio:g} of {row.peer}"
    return f"{name(row)}: {value}; target {_number(row.target)}"


def name(row: Measurement) -> str:
    """Return benchmark, metric and size of a figure."""
    return f"{row.bench}: {row.metric}" + ("" if row.size is None else f", {row.size}")


def screen(
    rows: Sequence[Measurement], conditions: Conditions, *, only_judged: bool, width: int | None = None
) -> Group:
    """Return figures by heading, a line each, and the verdict on all."""
    judged = [row for row in rows if row.ok is not None]
    zeros = [row for row in judged if row.ok and row.target == 0 and row.ratio is None]
    shown = [row for row in (judged if only_judged else rows) if row not in zeros]
    counted = [row for row in rows if row.bench == counter_names.BENCH]
    if counted:
        shown, zeros = [row for row in shown if row.bench != counter_names.BENCH], []
    lines = [*(_lines(shown, width or out.width) if shown else ()), *counter_tables.tables(counted)]
    if zeros:
        checks = format_count(len(zeros), "check")
        lines.append(Text(f"Must be zero, and is: outputs that differ, bytes copied ({checks})"))
    return Group(*lines, *_summary(judged, len(rows) - len(judged) if only_judged else 0, conditions))


def _lines(rows: Sequence[Measurement], width: int) -> Iterator[RenderableType]:
    groups: dict[str, list[tuple[Measurement, Sequence[str]]]] = {}
    for row in rows:
        value = "" if row.ratio is None else f"{row.value:g} {row.unit}"
        cells = words.label(row), value, words.figure(row), words.verdict(row)
        groups.setdefault(words.heading(row), []).append((row, cells))
    widths = [max(len(cells[at]) for members in groups.values() for _, cells in members) for at in range(4)]
    if sum(widths) + _GAPS > width:  # then values are left out, and long names folded
        widths[1] = 0
        widths[0] = max(_LABEL, min(widths[0], width - _GAPS - sum(widths[1:])))
    if any(row.ratio for row in rows):
        yield Text("2 x: twice the time, rate or memory of the other side", style="dim")
    for title, members in groups.items():
        yield Text(title, style="bold")
        yield _group(members, widths)


def _group(members: Sequence[tuple[Measurement, Sequence[str]]], widths: Sequence[int]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    for at, width in enumerate(widths):
        table.add_column(width=width, no_wrap=at > 0, justify="right" if at in (1, 2) else "left")
    for row, (label, value, figure, verdict) in members:
        shown = Text(value if widths[1] else "")
        table.add_row("", Text(label), shown, Text(figure), Text(verdict, style=_STYLES[row.ok]))
    return table


def _summary(judged: Sequence[Measurement], more: int, conditions: Conditions) -> Iterator[RenderableType]:
    missed = [row for row in judged if row.ok is False]
    if judged:
        met = f"{len(judged) - len(missed)} of {format_count(len(judged), 'target')} met, on {conditions}"
        yield Text(met, style="bold")
    if missed:
        yield Text("Missed, and the place in docs/benchmarks.md that says why:")
    places: dict[str, list[str]] = {}
    for row in missed:
        place = targets.explained(row.bench, row.metric)
        label = words.label(row) if place else f"{row.bench}: {words.label(row)}"
        places.setdefault(place or _UNKNOWN, []).append(label)
    table = Table.grid(padding=(0, 1, 0, 0))
    for place, names in places.items():
        table.add_row("", Text(place, style="" if place != _UNKNOWN else "red"), Text("; ".join(names)))
    yield table
    if more:
        yield Text(f"{format_count(more, 'figure')} more, without a target: --json or --html FILE")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
