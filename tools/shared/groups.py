"""Command groups: one that reports failures in a line, one that is imported on first use."""

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
    "kernel": (
        "softnpu.tools.kernel.cli",
        "Own kernels, in WebAssembly: begin, build, inspect, test, measure.",
    ),
    "models": ("softnpu.tools.models.cli", "Real models to try things with, out of packages on PyPI."),
    "trace": ("softnpu.tools.trace.cli", "One timeline of programs, daemon and devices, for Perfetto."),
}


INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""


class _Interrupts:
    """Ctrl-C ends a command. `came`: its exception may have been replaced by another, as in an import."""

    came = False

    @classmethod
    def handle(cls, *_: object) -> None:
        cls.came = True
        # the cleanup that follows must not be interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt


def application(name: str, help: str, *, no_args_is_help: bool = True) -> typer.Typer:
    """Return an application for a group's commands."""
    # not rich's own markup, which drops bracketed text
    return typer.Typer(name=name, help=help, no_args_is_help=no_args_is_help, rich_markup_mode="markdown")


class DeferredGroup(TyperGroup):
    """A stand-in for the typer application `app` of a module until one of its commands is called."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Continue with the application: from here on the stand-in is unused."""
        return self.application().make_context(info_name, args, parent=parent, **extra)

    def application(self) -> Any:
        """Import the application; return its command group."""
        try:
            application: typer.Typer = importlib.import_module(self._module).app
        except ModuleNotFoundError as error:
            if error.name is None or not self._module.startswith(error.name):
                raise
            raise ToolError(f"command '{self.name}'", found="not part of this installation") from error
        return typer.main.get_group(application)


class RootGroup(TyperGroup):
    """All commands. A user-fixable failure is one line on stderr and exit code 1, or 2 for wrong usage."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (module, summary) in _DEFERRED.items():
            self.commands[name] = DeferredGroup(name, module, summary)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report its orderly end in a line, without a traceback."""
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
            raise typer.Exit(failures.exit_code(error)) from error
