"""`softnpu run PROGRAM` without options: become the program before anything else is imported.

The command line's libraries take as long to import as a small program runs. It takes over where options, a
setting to check or an error need it: `try_to_run` returns. Even the driver's modules wait until a daemon can
neither be found nor started at once.
"""

from __future__ import annotations

import _socket  # `socket` takes ten times as long to import
import os
import sys

from softnpu.driver import program_environment
from softnpu.emulator import quick_daemon, socket_files
from softnpu.emulator.common import native_files, streams
from softnpu.emulator.common.home import ensure_home
from softnpu.emulator.interface import socket_place
from softnpu.emulator.interface.environment import (
    ENV_AUTOSTART,
    ENV_IDLE_S,
    ENV_LEASE,
    ENV_SAVED_ENV,
    ENV_SOCKET,
    ENV_SPIN_US,
    TRACE_VARIABLE,
    asked_settings,
    of_daemon,
)

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKED = (ENV_SPIN_US, ENV_IDLE_S, ENV_SAVED_ENV, "SOFTNPU_FAILPOINTS")
"""Variables whose values are checked before a program starts."""
_CONNECT_S = 1.0
_ROOT = 0
_CREDENTIALS_SIZE = 12  # `struct ucred`: pid, uid, gid


def try_to_run(arguments: Sequence[str]) -> None:
    """Become the program in `arguments`, the words after `run`, with a daemon that serves it.

    Return if `softnpu run` has to parse, check or report something.
    """
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command or (command == list(arguments) and command[0].startswith("-")):
        return
    if asked_settings(os.environ) or os.environ.get(TRACE_VARIABLE):
        return  # only a handshake compares a daemon's settings, and a trace's writer must stay
    streams.open_streams()
    ensure_home()
    if any(os.environ.get(name) for name in _CHECKED):
        _run_with_driver(command)
        return
    try:
        folder = native_files.folder_name()
        driver = os.path.join(folder, native_files.DRIVER_NAME)
        loader = os.path.join(folder, "loader", program_environment.LOADER_NAME)
        place = socket_place.place()
        if not (os.path.exists(driver) and os.path.exists(loader)):
            return
        if not _has_daemon(place):
            _run_with_driver(command)
            return
        os.execvpe(command[0], command, program_environment.of_program(driver, loader, place, os.environ))
    except OSError:
        return


def _has_daemon(place: str) -> bool:
    """Whether a daemon of this user or of root serves the place, or is started now; False in any doubt."""
    chosen = os.environ.get(ENV_SOCKET)
    if ".." in chosen.split("/") if chosen else not socket_place.is_private(os.path.dirname(place)):
        return False
    connection = socket_files.new_socket()
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(place)
        peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS_SIZE)
        return int.from_bytes(peer[4:8], sys.byteorder) in (os.geteuid(), _ROOT)
    except FileNotFoundError:
        may_start = os.environ.get(ENV_AUTOSTART) != "0" and not os.environ.get(ENV_LEASE)
        return may_start and quick_daemon.start(place, of_daemon(os.environ))
    except OSError:
        return False
    finally:
        connection.close()


def _run_with_driver(command: list[str]) -> None:
    """Become the program, as `try_to_run`: it waits for others that start a daemon, and checks variables."""
    from softnpu.driver import native_library, starter
    from softnpu.driver.errors import ZeError
    from softnpu.driver.launch import DaemonLauncher
    from softnpu.emulator.interface.environment import spin_us
    from softnpu.emulator.interface.result import Refused

    starter.begin_early()
    try:
        spin_us()
        library = native_library.find()
        launcher = DaemonLauncher(None, None)
        launcher.connect().close()
        environment = library.environment(launcher.socket_path, os.environ)
        os.execvpe(command[0], command, environment)
    except (ZeError, Refused, OSError):
        return
