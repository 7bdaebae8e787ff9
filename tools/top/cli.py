"""`softnpu top`: devices, sessions, models and compilations, or the nodes of a cluster, on a screen."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from softnpu.tools.farm import report
from softnpu.tools.shared.daemon_connection import SocketOption, socket_path
from softnpu.tools.shared.failures import ToolError

_LEAST_S: Final = 0.2


def top(
    delay: Annotated[float, typer.Option("-d", "--delay", help="Seconds between two samples.")] = 1.0,
    light: Annotated[
        bool | None,
        typer.Option("--light/--dark", help="Colours of its own; otherwise those of the terminal."),
    ] = None,
    socket: SocketOption = None,
    farm: Annotated[bool, typer.Option("--farm", help="Show the nodes of a cluster instead.")] = False,
    address: report.AddressOption = report.THIS_MACHINE,
) -> None:
    """Show what the daemon does on a screen, until q or F10. The keys are those of htop; F1 lists them.

    It needs textual: pip install 'softnpu[top]'.
    """
    if delay < _LEAST_S:
        raise typer.BadParameter(f"{delay:g} s between two samples; expected {_LEAST_S:g} or more")
    report.check(farm, address, socket)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ToolError(
            "softnpu top",
            found="no terminal",
            expected="one to show a screen on",
            hint=f"use 'softnpu status {'--farm' if farm else '--watch'}'",
        )
    try:
        from softnpu.tools.top.app import TopApp
        from softnpu.tools.top.farm_app import FarmApp
    except ImportError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise ToolError(
            "softnpu top",
            found="no textual",
            expected="an installation with it",
            hint="install it with: pip install 'softnpu[top]'",
        ) from error
    theme = "ansi" if light is None else "light" if light else "dark"
    app = FarmApp(address, delay, theme) if farm else TopApp(socket_path(socket), delay, theme)
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
