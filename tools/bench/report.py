"""Presentation of figures: one document for programs, a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from softnpu.tools.bench.result import Figures, Measurement
from softnpu.tools.shared.console import out, print_json


def show(measurements: Iterable[Measurement], json: bool) -> list[Measurement]:
    """Print and return all measurements, even if a later one fails."""
    rows: list[Measurement] = []
    try:
        for measurement in measurements if json else _with_status(measurements):
            rows.append(measurement)
    finally:
        if json:
            print_json(Figures(rows))
        elif rows:
            out.print(table(rows))
    return rows


def sentence(row: Measurement) -> str:
    """Return a figure with its target in one line."""
    value = f"{row.value:g} {row.unit}" if row.ratio is None else f"{row.ratio:g} of {row.peer}"
    return f"{name(row)}: {value}; target {_number(row.target)}"


def name(row: Measurement) -> str:
    """Return benchmark, metric and size of a figure."""
    return f"{row.bench}: {row.metric}" + ("" if row.size is None else f", {row.size}")


def _with_status(measurements: Iterable[Measurement]) -> Iterator[Measurement]:
    with out.status("measuring") as status:
        for measurement in measurements:
            status.update(f"measured {measurement.bench}: {measurement.metric}")
            yield measurement


def table(measurements: Iterable[Measurement]) -> Table:
    """Return a table with a row for each figure."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # on a terminal of 80 columns the two text columns shrink; numbers and verdict do not
    made.add_column("figure", min_width=16)
    made.add_column("value", justify="right", no_wrap=True)
    made.add_column("peer", min_width=9)
    for heading in ("peer's", "ratio", "target"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    labels = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}
    for row in measurements:
        made.add_row(
            name(row),
            f"{row.value:g} {row.unit}",
            row.peer or "",
            _number(row.peer_value),
            _number(row.ratio),
            _number(row.target),
            labels[row.ok],
        )
    return made


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
