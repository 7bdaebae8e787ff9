"""`softnpu models`: list the catalogue, fetch a model and print its path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softnpu.tools.models.catalogue import CATALOGUE, ModelEntry
from softnpu.tools.models.fetch import cached, directory, get
from softnpu.tools.shared import completion
from softnpu.tools.shared.console import JsonOption, make_table, out, print_json
from softnpu.tools.shared.groups import application

app = application("models", "Real models to try things with, out of packages on PyPI.")


@app.command("ls")
def list_models(json_output: JsonOption = False) -> None:
    """List the models, their packages, licences and static input shapes, and whether the cache has them."""
    paths = {name: cached(entry) for name, entry in CATALOGUE.items()}
    if json_output:
        print_json({"models": [_described(entry, paths[name]) for name, entry in CATALOGUE.items()]})
        return
    from rich.text import Text

    table = make_table(
        f"models in {directory()}", "name", "input shapes", "cached", "description, package, licence"
    )
    table.columns[-1].no_wrap = False
    for name, entry in CATALOGUE.items():
        state = "yes" if paths[name] else "no"
        described = Text(f"{entry.description}\n{entry.requirement}\n{entry.licence}")
        table.add_row(name, Text(_shapes(entry)), state, described)
    out.print(table)


@app.command("get")
def get_model(
    name: Annotated[
        str, typer.Argument(autocompletion=completion.models, help="A name that `models ls` shows.")
    ],
) -> None:
    """Fetch a model unless the cache has it, and print the path of its file and nothing else."""
    typer.echo(get(name))


def _described(entry: ModelEntry, path: Path | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "requirement": entry.requirement,
        "licence": entry.licence,
        "shapes": dict(entry.shapes),
        "path": None if path is None else str(path),
    }


def _shapes(entry: ModelEntry) -> str:
    """Return one line per input: its name and its extents joined by x."""
    return "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in entry.shapes.items())
