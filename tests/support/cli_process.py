"""The process in which the `softnpu` command of a test runs: forked after the imports that take long."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import socket
import sys
import threading
import traceback
from typing import Any

from softnpu.tools.fork_server import ChildFunction

_STREAMS = 3


def child_function() -> ChildFunction:
    """Import what commands need of other projects; softnpu itself reads the environment when imported."""
    import blake3  # noqa: F401
    import msgspec  # noqa: F401
    import numpy  # noqa: F401
    import openvino  # noqa: F401
    import platformdirs  # noqa: F401
    import posix_ipc  # noqa: F401
    import psutil  # noqa: F401
    import rich.console
    import rich.live
    import rich.progress
    import rich.table  # noqa: F401
    import typer  # noqa: F401

    return _run


def _run(request: bytes, connection: socket.socket) -> int:
    """Run a command: streams and the rest of the request come over the connection."""
    _, fds, _, _ = socket.recv_fds(connection, 1, _STREAMS)
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    connection.close()
    described: dict[str, Any] = json.loads(request)
    os.environ.clear()
    os.environ.update(described["environment"])
    os.chdir(described["folder"])
    sys.argv = ["softnpu", *described["arguments"]]
    code = _exit_code()
    # what the interpreter does at its end
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _exit_code() -> int:
    try:
        runpy.run_module("softnpu.tools.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0
