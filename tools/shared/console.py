"""Output of all commands: two consoles, tables, JSON, and human-readable quantities."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, ConsoleDimensions

from softnpu.emulator.common.printable import printable

if TYPE_CHECKING:
    from softnpu.tools.shared.plain_table import PlainTable

_UNLIMITED: Final = 1 << 20


class _Output(Console):
    """Stdout: in a file or a pipe nothing is cut or folded, unless COLUMNS says how wide it is shown."""

    @property
    def size(self) -> ConsoleDimensions:
        """Return columns and lines."""
        known = super().size
        if self.is_terminal or self._environ.get("COLUMNS"):
            return known
        return ConsoleDimensions(_UNLIMITED, known.height)

    @size.setter
    def size(self, new: tuple[int, int]) -> None:
        self._width, self._height = new


out: Final = _Output()
err: Final = Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]

JSON_VERSION: Final = 1
"""Of the documents of `--json`: it grows when a field goes or changes its meaning, not when one is added."""

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def print_line(text: str, *, console: Console = out, style: str = "") -> None:
    """Print a line verbatim: no markup, no colours of numbers, not folded, no control characters."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True, style=style or None)


def print_json(document: Any) -> None:
    """Print a struct or a dictionary as one document; bytes as hex. A list is a field of one."""
    typer.echo(json_text(document, indent=2))


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON, which begins with `json_version`."""
    import msgspec

    # a message's tag is no field of the document
    plain = msgspec.to_builtins(document, builtin_types=(bytes,))
    return json.dumps({"json_version": JSON_VERSION} | plain, indent=indent, default=bytes.hex)


def make_table(title: str | None, *headings: str, right: tuple[str, ...] = (), names: str = "") -> PlainTable:
    """Return a table with these columns, none of them folded; those of `right` are right-aligned.

    On a narrow terminal the column `names` gives way first: its texts lose their beginning, as their ends
    distinguish them.

    A cell is a text as `print_line` prints it, or a rich text with colours or several lines.
    """
    from rich import box

    from softnpu.tools.shared.plain_table import PlainTable

    table = PlainTable(title=title and printable(title), title_justify="left", box=box.SIMPLE_HEAD)
    for number, heading in enumerate((*headings, *right)):
        is_name = bool(names) and heading == names
        table.add_column(heading, no_wrap=not is_name, justify="right" if heading in right else "left")
        if is_name:
            table.name_column = number
    return table


def format_count(number: int, noun: str) -> str:
    """Return `1 model`, `2 models`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Return `23.4 GiB`; exact below 1 KiB."""
    for unit in _BINARY:
        if size < 1024 or unit == _BINARY[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def format_time(seconds: float) -> str:
    """Return `850 us`, `12.3 ms`, `4.1 s`, `3 min 20 s`, `5 h 12 min`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def parse_whole(text: str) -> int:
    """Parse a whole number in ASCII digits, as in environment variables; else raise `typer.BadParameter`."""
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise typer.BadParameter(f"{text[:40]!r}; expected a whole number")
    return int(text)


def parse_size(text: str) -> int:
    """Parse bytes: `4GiB`, `4G` (binary), `500MB` (decimal), `1048576`; else raise `typer.BadParameter`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r}; expected a size such as 4GiB, 512MiB, 500MB or 1048576")
    number, prefix, binary = match.groups()
    decimal = not binary and text.strip().upper().endswith("B") and prefix
    return int(float(number) * (1000 if decimal else 1024) ** _POWERS[prefix.upper()])
