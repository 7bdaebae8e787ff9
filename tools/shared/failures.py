"""Failures shown to the user as one line on stderr."""

from __future__ import annotations

import os
import sys
from typing import Final

DEBUG_VARIABLE: Final = "SOFTNPU_DEBUG"
"""`1`: commands that fail print their traceback."""


FAILURE: Final = 1
WRONG_USAGE: Final = 2
"""Exit codes; Typer's own for wrong usage."""


class ToolError(Exception):
    """A command cannot do what it is asked to: the object, the value found, the one expected."""

    def __init__(self, object: str, *, found: str, expected: str = "", hint: str = "") -> None:
        self.object, self.found, self.expected, self.hint = object, found, expected, hint
        text = f"{object}: {found}"
        if expected:
            text += f"; expected {expected}"
        if hint:
            text += f". {hint[:1].upper()}{hint[1:]}"
        super().__init__(text)


class UsageError(ToolError):
    """The command line is wrong: another form, an unknown name, two options that exclude each other."""


def expected() -> tuple[type[Exception], ...]:
    """Return the exceptions reported without a traceback; any other is a defect of ours."""
    from softnpu.driver.errors import ZeError
    from softnpu.emulator.interface.result import Refused
    from softnpu.tools.models.errors import ModelError

    kinds: tuple[type[Exception], ...] = (ToolError, ZeError, Refused, ModelError, OSError)
    # only users of the plugin can meet its errors; importing it loads OpenVINO
    plugin = sys.modules.get("softnpu.plugin")
    return kinds if plugin is None else (*kinds, plugin.NpuError)


def exit_code(error: Exception) -> int:
    """Return 2 if the command line itself is wrong, whoever noticed; else 1."""
    from softnpu.driver.errors import ZeError
    from softnpu.emulator.interface.result import Refused, ZeResult
    from softnpu.tools.models.errors import UnknownModelError

    plugin = sys.modules.get("softnpu.plugin")
    if isinstance(error, UsageError | UnknownModelError) or (
        plugin is not None and isinstance(error, plugin.PropertyError)
    ):
        return WRONG_USAGE
    refusal = error if isinstance(error, ZeError | Refused) else error.__cause__  # of the plugin's errors
    if isinstance(refusal, ZeError | Refused):
        wrong = refusal.info.result == ZeResult.ERROR_INVALID_ARGUMENT or refusal.info.property
        return WRONG_USAGE if wrong else FAILURE
    return FAILURE


def debugging() -> bool:
    """Return whether the user asked for tracebacks (`SOFTNPU_DEBUG=1`)."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    from softnpu.driver.errors import ZeError
    from softnpu.emulator.interface.result import Refused

    if isinstance(error, ZeError):
        text = f"{error.info} [{error.info.name} in {error.call}]"
    elif isinstance(error, Refused):
        text = f"{error.info} [{error.info.name}]"
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def print_error(error: Exception) -> None:
    """Print it on stderr."""
    from softnpu.tools.shared.console import err, print_line

    err.print("[bold red]softnpu:[/]", end=" ")
    print_line(describe(error), console=err)
