"""A table whose cells others may have named: a text in it is no markup, and nothing that a terminal obeys."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from softnpu.emulator.common.printable import printable


class PlainTable(Table):
    """Colours and several lines come from texts of rich, never from plain ones."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row; see `Table.add_row`."""
        plain = (Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)
