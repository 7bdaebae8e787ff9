"""The figures of `bench counters` as tables: one for each case, a column for each process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from softnpu.tools.bench.counter_names import CALLS, COPIED, COUNTS, PROCESSES
from softnpu.tools.bench.result import Measurement


def tables(rows: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield the table of each case, and the calls that its processes make."""
    cases: dict[str, dict[str, Measurement]] = {}
    for row in rows:
        case, _, rest = row.metric.partition(": ")
        cases.setdefault(case, {})[rest] = row
    for case, found in cases.items():
        yield _table(case, found)
        for process in PROCESSES:
            begin = f"{process}: {CALLS}: "
            names = [
                f"{key.removeprefix(begin)} {row.value:.2f}"
                for key, row in found.items()
                if key.startswith(begin)
            ]
            if names:
                yield Text(f"  {process} calls {', '.join(names)}")
        copied = found.get(COPIED)
        if copied:
            yield Text(f"  bytes copied {copied.value:g}, least 0", style=_style(copied))


def _table(case: str, found: dict[str, Measurement]) -> Table:
    table = Table.grid(padding=(0, 2))
    for heading in (case, *PROCESSES, "least", ""):
        table.add_column(justify="right" if heading in PROCESSES else "left", no_wrap=True)
    table.add_row(*(Text(text, style="bold") for text in (case, *PROCESSES, "least", "")))
    for what in COUNTS:
        cells = [found.get(f"{process}: {what}") for process in PROCESSES]
        least = [_least(cell) for cell in cells]
        above = [process for process, cell in zip(PROCESSES, cells, strict=True) if cell and cell.ok is False]
        unit = next((f", {cell.unit}" for cell in cells if cell and cell.unit == "us"), "")
        table.add_row(
            Text(f"  {what}{unit}"),
            *(Text("?" if cell is None else f"{cell.value:.2f}", style=_style(cell)) for cell in cells),
            ", ".join(text for text in least if text) if any(cells) else "",
            Text(f"more: {', '.join(above)}" if above else "", style="red"),
        )
    return table


def _least(cell: Measurement | None) -> str:
    """Return the least in words; beside OpenVINO's own part it is one more than that."""
    if cell is None:
        return "?"
    if cell.peer_value is not None:
        return f"OpenVINO {cell.peer_value:.2f}"
    return "" if cell.target is None else f"{cell.target:g}"


def _style(cell: Measurement | None) -> str:
    return {None: "", True: "green", False: "red"}[None if cell is None else cell.ok]
