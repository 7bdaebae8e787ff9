"""`softnpu run PROGRAM` without options: become the program before anything else is imported.

The command line's libraries take as long to import as a small program runs. It takes over where options, a
setting to check or an error need it: `try_to_run` returns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from softnpu.driver import starter
from softnpu.emulator.interface.environment import TRACE_VARIABLE, asked_settings, spin_us


def try_to_run(arguments: Sequence[str]) -> None:
    """Become the program in `arguments`, the words after `run`, with a daemon that serves it.

    Return if `softnpu run` has to parse, check or report something.
    """
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command or (command == list(arguments) and command[0].startswith("-")):
        return
    if asked_settings(os.environ) or os.environ.get(TRACE_VARIABLE):
        return  # only a handshake compares a daemon's settings, and a trace's writer must stay
    starter.begin_early()
    from softnpu.driver import native_library
    from softnpu.driver.errors import ZeError
    from softnpu.driver.launch import DaemonLauncher
    from softnpu.emulator.common import streams
    from softnpu.emulator.common.home import ensure_home
    from softnpu.emulator.interface.result import Refused

    streams.open_streams()
    ensure_home()
    try:
        spin_us()
        library = native_library.find()
        launcher = DaemonLauncher(None, None)
        launcher.connect().close()
        environment = library.environment(launcher.socket_path, os.environ)
        os.execvpe(command[0], command, environment)
    except (ZeError, Refused, OSError):
        return
