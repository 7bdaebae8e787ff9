"""`softnpu check`: run a program, and say what it does wrong with the NPU."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from softnpu.tools.shared.daemon_connection import PlatformOption, socket_path

# what accesses memory in flight is noted by a handler
_IN_GDB: Final = ("gdb", "-q", "-ex", "handle SIGSEGV nostop noprint pass", "-ex", "run", "--args")


def check(
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, after --.")
    ] = None,
    platform: PlatformOption = None,
    as_device: Annotated[
        bool,
        typer.Option(
            "--as-device", help="Accept what is right only because this device runs lists in order."
        ),
    ] = False,
    waste: Annotated[
        bool, typer.Option("--waste", help="Also tell what is right, and wastes time or memory.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the findings as JSON.", dir_okay=False),
    ] = None,
    sarif: Annotated[
        Path | None,
        typer.Option("--sarif", metavar="FILE", help="Also write them as SARIF 2.1.0.", dir_okay=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write them as a page.", dir_okay=False),
    ] = None,
    suppressions: Annotated[
        Path | None,
        typer.Option(
            "--suppressions",
            metavar="FILE",
            help="Findings to leave out, a pattern a line.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Stop the program at the first finding: SIGTRAP ends it.")
    ] = False,
    debugger: Annotated[
        str, typer.Option(metavar="gdb|pdb", help="Run it in gdb, or stop it in pdb, at the first finding.")
    ] = "",
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="On the daemon that other programs use too: this one is checked, with an engine of its own.",
        ),
    ] = False,
    notes: Annotated[
        Path | None,
        typer.Option(
            "--notes",
            metavar="DIR",
            help="Instead of a program: what 'softnpu daemon --check DIR' has seen so far.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    exit_code: Annotated[
        int, typer.Option("--exit-code", help="Exit code when something is found.", min=0, max=125)
    ] = 1,
) -> None:
    """Run a program on a device that watches it: races, lifetimes, reads of what nobody wrote.

    The exit code is the program's if it fails, else --exit-code if something is found.
    """
    from softnpu.driver import native_library
    from softnpu.tools.check import output, page
    from softnpu.tools.check.analysis import analyse
    from softnpu.tools.check.checked_daemon import checked_daemon
    from softnpu.tools.check.gate import Gate
    from softnpu.tools.shared.pages import rendering
    from softnpu.tools.shared.program import watch

    _refuse_misuse(command, notes, debugger, first=first, shared=shared)
    patterns = output.read_suppressions(suppressions) if suppressions is not None else []
    for path in (json, sarif):
        if path is not None:
            output.check_writable(path)
    if html is not None:
        rendering.check_target("--html", html)
    settings: dict[str, Any] = {"devices": tuple(platform)} if platform else {}
    code, gate = 0, None
    with tempfile.TemporaryDirectory(prefix="softnpu-check-") as made:
        folder = Path(made) if notes is None else notes
        if command is not None:
            if debugger == "gdb":
                command = [*_IN_GDB, *command]
            with ExitStack() as stack:
                if first or debugger:
                    # a debugger stops more than the program: the device waits for it
                    settings |= {"tdr_ms": 3_600_000} if debugger else {}
                    gate = stack.enter_context(Gate(folder, debugger, patterns, as_device=as_device))
                if shared:
                    variables = _on_shared_daemon(folder, platform)
                else:
                    daemon = stack.enter_context(checked_daemon(folder, **settings))
                    base = daemon.environment(os.environ)
                    variables = native_library.find().environment(daemon.socket, base)
                code = watch(command, variables)
        stopped = gate.found if gate is not None and code == 128 + signal.SIGTRAP else None
        findings = stopped or analyse(folder, as_device=as_device, waste=waste)
    left_out = output.suppress(findings, patterns)
    if stopped is None:  # else the gate has shown them
        output.show(findings, left_out)
    if json is not None:
        output.write_json(json, findings)
    if sarif is not None:
        output.write_sarif(sarif, findings)
    if html is not None:
        program = f"notes in {notes}" if command is None else shlex.join(command)
        page.write_page(html, findings, left_out, program)
    raise typer.Exit(code or (exit_code if findings.found else 0))


def _on_shared_daemon(notes: Path, platforms: list[str] | None) -> dict[str, str]:
    """Return the environment of a program that is checked alone on the daemon that others use."""
    from softnpu.driver import native_library
    from softnpu.emulator.interface.environment import ENV_CHECK
    from softnpu.tools.run.cli import environment_for

    library = native_library.find()
    return {**environment_for(library, socket_path(None), platforms, os.environ), ENV_CHECK: str(notes)}


def _refuse_misuse(
    command: list[str] | None, notes: Path | None, debugger: str, *, first: bool, shared: bool
) -> None:
    from softnpu.tools.shared.failures import UsageError

    if (command is None) == (notes is None):
        found = "neither" if notes is None else f"--notes {notes} and a program"
        raise UsageError("softnpu check", found=found, expected="a program after --, or --notes DIR")
    if debugger not in ("", "gdb", "pdb"):
        raise UsageError("--debugger", found=debugger, expected="gdb or pdb")
    if notes is not None and (first or debugger):
        option = "--debugger" if debugger else "--first"
        raise UsageError(option, found="--notes", expected="a program that it stops")
    if notes is not None and shared:
        raise UsageError("--shared", found="--notes", expected="a program that it runs")
    if debugger and shared:  # the daemon's watchdog would abort what waits for the program
        raise UsageError("--debugger", found="--shared", expected="a daemon of its own")
