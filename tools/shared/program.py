"""A program that a command runs and waits for: its exit code, signals to it, why it cannot run."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

import typer

from softnpu.tools.shared.failures import ToolError, print_error

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def watch(
    command: list[str],
    environment: Mapping[str, str],
    meanwhile: Callable[[], None] = lambda: None,
    every_s: float | None = None,
) -> int:
    """Run the program and return its exit code as a shell reports it; forward signals to it.

    With `every_s` call `meanwhile()` at these intervals.
    """
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as failure:
        raise unusable(command[0], failure) from failure
    before = {number: signal.signal(number, lambda got, _: process.send_signal(got)) for number in _PASSED_ON}
    # a terminal interrupts both processes; the reaction is up to the program
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            try:
                code = process.wait(every_s)
                break
            except subprocess.TimeoutExpired:
                meanwhile()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def unusable(program: str, failure: OSError) -> Exception:
    """Tell why a program does not run, and return the exit that a shell would use."""
    if isinstance(failure, FileNotFoundError):
        print_error(
            ToolError(f"program {program}", found="not found", expected="a program in PATH, or its path")
        )
        return typer.Exit(_NOT_FOUND)
    print_error(
        ToolError(
            f"program {program}",
            found=failure.strerror or str(failure),
            expected="a program that can be executed",
        )
    )
    return typer.Exit(_NOT_EXECUTABLE)
