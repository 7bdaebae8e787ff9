"""Groups of commands: one that tells failures in a line, one that is imported only when it is used."""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer
from typer.core import TyperGroup

from softnpu.tools import failures
from softnpu.tools.failures import ToolError

_DEFERRED: Final = {
    "bench": ("softnpu.tools.bench.cli", "Measure this machine's emulated NPU against its peers."),
    "blob": ("softnpu.tools.blob", "Exported models: what is in one, and does it run here."),
    "cache": ("softnpu.tools.cache", "Compiled models on disk: list, verify, prune, explain a miss."),
    "inject": ("softnpu.tools.inject", "Provoke faults of the device, to see how a program copes with them."),
    "models": ("softnpu.tools.models.cli", "Real models to try things with, out of packages on PyPI."),
}


class DeferredGroup(TyperGroup):
    """Stands for the typer application `app` of a module until somebody calls one of its commands."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Imports the application and goes on with it: from here on the stand-in plays no part."""
        try:
            application: typer.Typer = importlib.import_module(self._module).app
        except ModuleNotFoundError as error:
            if error.name is None or not self._module.startswith(error.name):
                raise
            raise ToolError(f"command '{self.name}'", found="not part of this installation") from error
        command: Any = typer.main.get_group(application)
        return command.make_context(info_name, args, parent=parent, **extra)


class RootGroup(TyperGroup):
    """All commands. A failure that a person can act on is one line on stderr and exit code 1."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (module, summary) in _DEFERRED.items():
            self.commands[name] = DeferredGroup(name, module, summary)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except failures.expected() as error:
            if failures.debugging() or isinstance(error, BrokenPipeError):
                raise
            failures.tell(error)
            raise typer.Exit(1) from error
