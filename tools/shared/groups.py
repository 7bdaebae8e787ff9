"""Groups of commands: one that reports failures in a line, one that is imported only when it is used."""

from __future__ import annotations

import importlib
import signal
from typing import Any, Final

import typer
from typer.core import TyperGroup

from softnpu.tools.shared import failures
from softnpu.tools.shared.failures import ToolError

_DEFERRED: Final = {
    "bench": ("softnpu.tools.bench.cli", "Measure this machine's emulated NPU against its peers."),
    "blob": ("softnpu.tools.blob", "Exported models: what is in one, and does it run here."),
    "cache": ("softnpu.tools.cache", "Compiled models on disk: list, verify, prune, explain a miss."),
    "farm": ("softnpu.tools.farm.cli", "Emulated devices of many machines, on Ray."),
    "inject": ("softnpu.tools.inject", "Provoke faults of the device, to see how a program copes with them."),
    "models": ("softnpu.tools.models.cli", "Real models to try things with, out of packages on PyPI."),
    "trace": ("softnpu.tools.trace.cli", "One timeline of programs, daemon and devices, for Perfetto."),
}


INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""


class _Interrupts:
    """Ctrl-C ends a command. `came`: its exception may have become another one, as in an import."""

    came = False

    @classmethod
    def handle(cls, *_: object) -> None:
        cls.came = True
        # what follows gives everything back, and is not interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt


def application(name: str, help: str, *, no_args_is_help: bool = True) -> typer.Typer:
    """An application for the commands of a group."""
    # not rich's own markup, which drops what is in brackets
    return typer.Typer(name=name, help=help, no_args_is_help=no_args_is_help, rich_markup_mode="markdown")


class DeferredGroup(TyperGroup):
    """Stands for the typer application `app` of a module until somebody calls one of its commands."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Go on with the application: from here on the stand-in plays no part."""
        return self.application().make_context(info_name, args, parent=parent, **extra)

    def application(self) -> Any:
        """Import the application; its group of commands."""
        try:
            application: typer.Typer = importlib.import_module(self._module).app
        except ModuleNotFoundError as error:
            if error.name is None or not self._module.startswith(error.name):
                raise
            raise ToolError(f"command '{self.name}'", found="not part of this installation") from error
        return typer.main.get_group(application)


class RootGroup(TyperGroup):
    """All commands. A failure that a person can act on is one line on stderr and exit code 1."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (module, summary) in _DEFERRED.items():
            self.commands[name] = DeferredGroup(name, module, summary)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what ends it in order is reported in a line, without a traceback."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _Interrupts.handle)
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or _Interrupts.came:
                raise typer.Exit(INTERRUPTED) from None
            if not isinstance(error, failures.expected()):
                raise
            if failures.debugging() or isinstance(error, BrokenPipeError):
                raise
            failures.print_error(error)
            raise typer.Exit(1) from error
