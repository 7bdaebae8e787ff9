"""`softnpu run` and `softnpu env`: any program, in an environment in which it finds the emulated NPU."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from softnpu.tools.shared.daemon_connection import PlatformOption, SocketOption, socket_path
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.private_daemon import private_daemon
from softnpu.tools.shared.program import unusable, watch

if TYPE_CHECKING:
    from softnpu.driver.native_library import NativeLibrary


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    platform: PlatformOption = None,
    private: Annotated[
        bool, typer.Option("--private", help="A daemon for this program alone, which ends with it.")
    ] = False,
    node: Annotated[
        bool, typer.Option("--node", help="Show it the NPU in /sys and /dev too, as monitors look for it.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Run any program, in an environment in which it finds the emulated NPU.

    The exit code is the program's; 127 when it is not found, 126 when it cannot be executed.
    """
    from softnpu.driver import native_library
    from softnpu.emulator.interface.environment import TRACE_VARIABLE
    from softnpu.tools.run.node import run_with_node

    library = native_library.find()
    if private and socket is not None:
        raise UsageError("option --private", found="given with --socket", expected="one of both")
    from softnpu.tools.trace.record import record, wanted_file

    output = wanted_file(os.environ)
    if node and output is not None:
        raise UsageError("option --node", found=f"given with {TRACE_VARIABLE}", expected="one of both")

    def start(variables: Mapping[str, str], path: Path) -> int:
        if node:
            return run_with_node(command, variables, path)
        return watch(command, variables) if output is None else record(command, variables, path, output)

    if not private:
        path = socket_path(socket)
        variables = environment_for(library, path, platform, os.environ)
        if output is None and not node:
            _replace(command, variables)
        raise typer.Exit(start(variables, path))
    settings: dict[str, Any] = {"devices": tuple(platform)} if platform else {}
    with private_daemon(**settings) as daemon:
        variables = library.environment(daemon.socket, daemon.environment(os.environ))
        code = start(variables, daemon.socket)
    raise typer.Exit(code)


def env(
    platform: PlatformOption = None,
    socket: SocketOption = None,
    github: Annotated[
        bool, typer.Option("--github", help='Print lines for a workflow: >> "$GITHUB_ENV".')
    ] = False,
) -> None:
    """Print what a shell has to set so that programs find the NPU: eval "$(softnpu env)"."""
    from softnpu.driver import native_library

    variables = environment_for(native_library.find(), socket_path(socket), platform, os.environ)
    for name, value in variables.items():
        if os.environ.get(name) != value:
            typer.echo(_github_line(name, value) if github else f"export {name}={shlex.quote(value)}")


def _github_line(name: str, value: str) -> str:
    if "\n" in value:
        raise ToolError(f"variable {name}", found="a line break in it", expected="one line for $GITHUB_ENV")
    return f"{name}={value}"


def environment_for(
    library: NativeLibrary, path: Path, platforms: list[str] | None, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment for programs that use the daemon at `path`; start one if allowed and needed.

    A daemon that runs there refuses other settings than the platforms and the variables in `base` ask for.
    """
    from softnpu.driver import Driver
    from softnpu.emulator.interface.environment import ENV_DEVICES

    asked = {} if platforms is None else {ENV_DEVICES: ",".join(platforms)}
    with _variables(asked), Driver.open(path, role="monitor", for_program=True):
        return library.environment(path, {**base, **asked})


@contextmanager
def _variables(chosen: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of this process for the duration of the block."""
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _replace(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as failure:
        raise unusable(command[0], failure) from failure
