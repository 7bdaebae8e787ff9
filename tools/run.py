"""`softnpu run` and `softnpu env`: any program, in an environment in which it finds the emulated NPU."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from softnpu.tools.daemon import Ending, await_end, open_process
from softnpu.tools.failures import ToolError, tell
from softnpu.tools.status import SocketOption, connect, place_of

if TYPE_CHECKING:
    from softnpu.driver.native_library import NativeLibrary

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_ORPHANED_S: Final = 5.0
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

DeviceOption = Annotated[
    list[str] | None,
    typer.Option(help="Platform of a device: 3720, 4000 (default) or 5010. Repeat for more devices."),
]


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    device: DeviceOption = None,
    private: Annotated[
        bool, typer.Option("--private", help="A daemon for this program alone, which ends with it.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Run any program, in an environment in which it finds the emulated NPU.

    The exit code is the program's; 127 when it is not found, 126 when it cannot be executed.
    """
    from softnpu.driver import native_library

    library = native_library.find()
    if private and socket is not None:
        raise ToolError("option --private", found="given with --socket", expected="one of both")
    if not private:
        _replace(command, joined(library, place_of(socket), device, os.environ))
    with private_daemon(device) as place:
        raise typer.Exit(_watch(command, library.environment(place, os.environ)))


def env(device: DeviceOption = None, socket: SocketOption = None) -> None:
    """Print what a shell has to set so that programs find the NPU: eval "$(softnpu env)"."""
    from softnpu.driver import native_library

    found = joined(native_library.find(), place_of(socket), device, os.environ)
    for name, value in found.items():
        if os.environ.get(name) != value:
            typer.echo(f"export {name}={shlex.quote(value)}")


def joined(
    library: NativeLibrary, place: Path, devices: list[str] | None, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment for programs of the daemon at `place`, which is started if there is none and it may be.

    Raises `ToolError` when one runs there with other devices than `devices`, platforms in their order.
    """
    from softnpu.driver import Driver

    with _started_with(devices), Driver.open(place, role="monitor") as driver:
        found = [known.info.platform for known in driver.devices]
    if devices is not None and found != devices:
        raise ToolError(
            f"daemon at {place}",
            found=f"its devices are {', '.join(found)}",
            expected=f"{', '.join(devices)}, as --device asks for",
            hint="take a daemon of your own with --private, or end that one with 'softnpu stop'",
        )
    return library.environment(place, base)


@contextmanager
def private_daemon(devices: list[str] | None = None) -> Iterator[Path]:
    """A daemon in a directory of its own: yields its socket, ends it and removes everything afterwards.

    Should this process be killed, the daemon ends by itself.
    """
    import msgspec

    from softnpu.driver import ZeError
    from softnpu.emulator.daemon import start_background
    from softnpu.emulator.supervisor.settings import DaemonSettings

    with tempfile.TemporaryDirectory(prefix="softnpu-run-") as folder:
        place = Path(folder, "npu.sock")
        settings = DaemonSettings(socket=str(place), idle_timeout_s=_ORPHANED_S)
        if devices:
            settings = msgspec.structs.replace(settings, devices=tuple(devices))
        start_background(settings)
        with connect(place) as driver:  # as long as this session lives the daemon is not idle
            ending = Ending(driver.daemon_pid, open_process(driver.daemon_pid))
            try:
                yield place
            finally:
                with suppress(ZeError):  # it has ended already
                    driver.stop_daemon()
                await_end(ending)


@contextmanager
def _started_with(devices: list[str] | None) -> Iterator[None]:
    """While this lasts, a daemon that starts by itself gets these devices."""
    from softnpu.emulator.interface.environment import ENV_DEVICES

    before = os.environ.get(ENV_DEVICES)
    if devices is not None:
        os.environ[ENV_DEVICES] = ",".join(devices)
    try:
        yield
    finally:
        if devices is not None:
            del os.environ[ENV_DEVICES]
            os.environ.update({} if before is None else {ENV_DEVICES: before})


def _replace(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as failure:
        raise _unusable(command[0], failure) from failure


def _watch(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs the program and returns its exit code as a shell tells it; signals to us go to it."""
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
        tell(ToolError(f"program {program}", found="not found", expected="a program in PATH, or its path"))
        return typer.Exit(_NOT_FOUND)
    tell(
        ToolError(
            f"program {program}",
            found=failure.strerror or str(failure),
            expected="a program that can be executed",
        )
    )
    return typer.Exit(_NOT_EXECUTABLE)
