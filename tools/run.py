"""`softnpu run` and `softnpu env`: any program, in an environment in which it finds the emulated NPU."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from softnpu.tools.failures import ToolError, print_error
from softnpu.tools.private_daemon import private_daemon
from softnpu.tools.status import PlatformOption, SocketOption, socket_path

if TYPE_CHECKING:
    from softnpu.driver.native_library import NativeLibrary

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    platform: PlatformOption = None,
    private: Annotated[
        bool, typer.Option("--private", help="A daemon for this program alone, which ends with it.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Run any program, in an environment in which it finds the emulated NPU.

    The exit code is the program's; 127 when it is not found, 126 when it cannot be executed.
    """
    from softnpu.driver import native_library
    from softnpu.emulator.interface import environment

    library = native_library.find()
    if private and socket is not None:
        raise ToolError("option --private", found="given with --socket", expected="one of both")
    if not private:
        _replace(command, environment_for(library, socket_path(socket), platform, os.environ))
    settings: dict[str, Any] = {"clock": environment.clock(), "inference_us": environment.inference_us()}
    if platform:
        settings["devices"] = tuple(platform)
    with private_daemon(**settings) as daemon:
        code = _watch(command, library.environment(daemon.socket, os.environ))
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
    library: NativeLibrary, place: Path, platforms: list[str] | None, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment for programs that use the daemon at `place`; starts one there if it may and must.

    Raises `ToolError` when one runs there with devices of other platforms, or in another order.
    """
    from softnpu.driver import Driver
    from softnpu.emulator.interface import environment

    with _started_with(platforms), Driver.open(place, role="monitor") as driver:
        actual = [known.info.platform for known in driver.devices]
        clock = driver.devices[0].info.clock
    if (wanted := base.get(environment.ENV_CLOCK)) and wanted != clock:
        raise ToolError(
            f"daemon at {place}",
            found=f"its devices show the clock {clock.value}",
            expected=f"{wanted}, as {environment.ENV_CLOCK} asks for",
            hint="take a daemon of your own with --private, or end that one with 'softnpu stop'",
        )
    if platforms is not None and actual != platforms:
        raise ToolError(
            f"daemon at {place}",
            found=f"its devices are {', '.join(actual)}",
            expected=f"{', '.join(platforms)}, as --platform asks for",
            hint="take a daemon of your own with --private, or end that one with 'softnpu stop'",
        )
    return library.environment(place, base)


@contextmanager
def _started_with(platforms: list[str] | None) -> Iterator[None]:
    """While this lasts, a daemon that starts by itself gets these devices."""
    from softnpu.emulator.interface.environment import ENV_DEVICES

    before = os.environ.get(ENV_DEVICES)
    if platforms is not None:
        os.environ[ENV_DEVICES] = ",".join(platforms)
    try:
        yield
    finally:
        if platforms is not None:
            del os.environ[ENV_DEVICES]
            os.environ.update({} if before is None else {ENV_DEVICES: before})


def _replace(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as failure:
        raise _unusable(command[0], failure) from failure


def _watch(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the program and return its exit code as a shell tells it; signals to us go to it."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as failure:
        raise _unusable(command[0], failure) from failure
    before = {number: signal.signal(number, lambda got, _: process.send_signal(got)) for number in _PASSED_ON}
    # a terminal sends its interrupt to both; what becomes of it is the program's decision
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _unusable(program: str, failure: OSError) -> Exception:
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
