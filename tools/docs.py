"""`softnpu docs`: the documents, as they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from softnpu.tools.shared.console import out
from softnpu.tools.shared.failures import UsageError

DIRECTORY: Final = Path(__file__).parents[1] / "docs"
"""Valid both in an installation and in a clone."""


def _beginning_so(incomplete: str) -> list[str]:
    """Return the documents that a shell offers."""
    return sorted({path.stem for path in DIRECTORY.rglob("*.md") if path.stem.startswith(incomplete)})


def docs(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=_beginning_so,
            metavar="[NAME]",
            help="Such as 'faults'; all are listed in 'index'.",
        ),
    ] = "index",
) -> None:
    """Print a document: how it is used, what is emulated, every command and variable."""
    import difflib

    known = {path.stem: path for path in DIRECTORY.rglob("*.md")}
    if name.removesuffix(".md") not in known:
        near = difflib.get_close_matches(name[:100].lower().removesuffix(".md"), known, n=1)
        raise UsageError(
            f"document {name!r}",
            found="no such document",
            expected=f"one of {', '.join(sorted(known))}",
            hint=f"did you mean {near[0]}?" if near else "",
        )
    text = known[name.removesuffix(".md")].read_text()
    if out.is_terminal:
        from rich.markdown import Markdown

        with out.pager(styles=True):
            out.print(Markdown(text))
    else:
        typer.echo(text, nl=False)
