"""A table for untrusted cells: their texts are never markup or terminal control sequences."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from softnpu.emulator.common.printable import printable


class PlainTable(Table):
    """Only rich texts bring colours and several lines, never plain ones."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row; see `Table.add_row`."""
        plain = (Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)
