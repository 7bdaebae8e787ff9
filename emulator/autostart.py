"""`python -m softnpu.emulator.autostart [--told] SOCKET`, run by a client that finds no daemon.

Starts a daemon in the background that ends by itself after some time without a client. With `--told` the path
that counts comes on the standard input, ended by a zero, or nothing is started.

`--taken SOCKET LOCK LISTENER`: this process, which has taken the socket, is the daemon (`quick_daemon.py`).
"""

from __future__ import annotations

import gc
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from softnpu.emulator.background import StartingDaemon
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import (
    clock,
    devices,
    idle_s,
    inference_us,
    spin_us,
)
from softnpu.emulator.interface.result import Refused, ZeResult

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.settings import DaemonSettings

_IDLE_S = 60.0
_OTHERS_S = 15.0
_TOLD_S = 10.0  # a program imports its libraries, and then it needs the daemon or not


def main(arguments: list[str]) -> int:
    """Return 0 once a daemon is ready at the socket, this or another one; else print the reason as JSON."""
    gc.disable()  # until the daemon serves: imports leave no garbage
    if arguments[0] == "--taken":
        return _serve_taken(arguments[1], *map(int, arguments[2:]))
    starting = StartingDaemon(_prepare, _serve)
    path = _told() if arguments[0] == "--told" else Path(arguments[0])
    if path is None:
        return 0
    end = time.monotonic() + _OTHERS_S
    while True:
        try:
            starting.begin(path)
        except Refused as error:
            # another daemon holds the lock: it starts, and will serve, or it ends, and will release the lock
            if endpoint.accepts(path):
                return 0
            if error.info.result != ZeResult.ERROR_NOT_AVAILABLE or time.monotonic() > end:
                import json  # late: the daemon has come up mostly

                print(json.dumps({"reason": str(error)}))
                return 1
            starting = StartingDaemon(_prepare, _serve)
        else:
            return 0


def _told() -> Path | None:
    """Wait to be told the socket on the standard input; None if that does not happen."""
    end, told = time.monotonic() + _TOLD_S, b""
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN)
    while not told.endswith(b"\0"):
        if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
            return None
        part = os.read(sys.stdin.fileno(), 65536)
        if not part:
            return None
        told += part
    return Path(os.fsdecode(told[:-1]))


def _serve_taken(path: str, lock: int, listener: int) -> int:
    from softnpu.emulator import daemon
    from softnpu.emulator.served_socket import TakenSocket

    for fd in (lock, listener):
        os.set_inheritable(fd, False)
    try:
        chosen = settings(path)
    except Refused as error:
        print(error, file=sys.stderr)  # the log
        return 1
    return daemon.serve_in_background(chosen, -1, engines=False, taken=TakenSocket(lock, listener))


def _prepare() -> None:
    from softnpu.emulator import daemon  # late: its children are started meanwhile

    daemon.prepare()


def _serve(path: Path, ready_fd: int) -> None:
    from softnpu.emulator import daemon

    daemon.serve_in_background(settings(str(path)), ready_fd, engines=False)


def settings(socket: str) -> DaemonSettings:
    """Return the settings of an autostarted daemon from the environment; refuse malformed ones."""
    from softnpu.emulator.platforms import DEFAULT_PLATFORM
    from softnpu.emulator.supervisor.settings import DaemonSettings

    return DaemonSettings(
        socket=socket,
        devices=devices(DEFAULT_PLATFORM),
        idle_timeout_s=idle_s(_IDLE_S),
        spin_us=spin_us(),
        clock=clock(),
        inference_us=inference_us(),
    )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # who waits for its end need not wait for Python's
