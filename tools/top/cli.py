"""`softnpu top`: devices, sessions, models and compilations on a screen."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from softnpu.tools.daemon_connection import SocketOption, socket_path
from softnpu.tools.failures import ToolError

_LEAST_S: Final = 0.2


def top(
    delay: Annotated[float, typer.Option("-d", "--delay", help="Seconds between two looks.")] = 1.0,
    light: Annotated[
        bool | None,
        typer.Option("--light/--dark", help="Colours of its own; otherwise those of the terminal."),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Show what the daemon does on a screen, until q or F10. The keys are those of htop; F1 lists them.

    It needs textual: pip install 'softnpu[top]'.
    """
    if delay < _LEAST_S:
        raise typer.BadParameter(f"{delay:g} s between two looks; expected {_LEAST_S:g} or more")
    path = socket_path(socket)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ToolError(
            "softnpu top",
            found="no terminal",
            expected="one to show a screen on",
            hint="use 'softnpu status --watch'",
        )
    try:
        from softnpu.tools.top.app import TopApp
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
    app = TopApp(path, delay, theme)
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
