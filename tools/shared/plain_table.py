"""A table for untrusted cells: their texts are never markup or terminal control sequences."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from softnpu.emulator.common.printable import printable


class PlainTable(Table):
    """Only rich texts bring colours and several lines, never plain ones.

    `name_column`: the column whose plain texts lose their beginning where there is no room; -1: none.
    """

    name_column = -1

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row; see `Table.add_row`."""
        plain = (
            cell if not isinstance(cell, str)
            else _Name(printable(cell)) if number == self.name_column
            else Text(printable(cell))
            for number, cell in enumerate(cells)
        )  # fmt: skip
        super().add_row(*plain, **options)


class _Name:
    """A name on one line: its end, if there is no room for all of it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self._text)
        return Measurement(min(width, 1), width).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_end_of(self._text, options.max_width), no_wrap=True)


def _end_of(text: str, width: int) -> str:
    """Return a text that fits the width: whole, or its end after an ellipsis."""
    if cell_len(text) <= width:
        return text
    # the first piece of the reversed text is the longest end that fits
    return f"…{chop_cells(text[::-1], width - 1)[0][::-1]}" if width > 1 else "…"
