"""`softnpu stress`: does the emulated NPU survive many clients that die and come back?"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer


def stress(
    clients: Annotated[int, typer.Option(min=1, max=1000, help="Client processes at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 20.0,
    kill: Annotated[
        bool, typer.Option("--kill", help="Clients, the engine and compiler workers are killed.")
    ] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="Clients inject faults into their own work.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Decides what every client does; random if not given.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the verdict there.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model file, or a name of `softnpu models`; without any small ones of its own."),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="The daemon to use; without one a private daemon for this run.")
    ] = None,
) -> None:
    """Let many processes compile, load, infer, share, cancel, die and return; check every result."""
    from softnpu.tools.stress.director import Director, Options
    from softnpu.tools.stress.private import target
    from softnpu.tools.stress.verdict import judge
    from softnpu.tools.stress.view import View, tell

    options = Options(
        clients=clients,
        seconds=seconds,
        kill=kill,
        faults=faults,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        models=tuple(_path(name) for name in model or ()),
    )
    with target(socket) as found, View() as view:
        director = Director(options, found, view.show)
        director.run()
    verdict = judge(director.state, director.deaths.done, found.failures)
    if json is not None:
        json.write_bytes(verdict.encode())
    tell(verdict)
    if not verdict.passed:
        raise typer.Exit(1)


def _path(name: str) -> str:
    """A file as it was named, or that of a model of the catalogue."""
    from softnpu.tools.failures import ToolError
    from softnpu.tools.models.catalogue import CATALOGUE
    from softnpu.tools.models.fetch import cached

    if name not in CATALOGUE:
        if not Path(name).is_file():
            raise ToolError(f"model {name}", "no such file", f"a file, or one of {', '.join(CATALOGUE)}")
        return name
    path = cached(CATALOGUE[name])
    if path is None:
        raise ToolError(f"model {name}", "not fetched", "a fetched model", f"softnpu models get {name}")
    return name
