"""`python -m softnpu.emulator.autostart SOCKET`, run by a client that finds no daemon.

Starts a daemon in the background that ends by itself after some time without a client.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from softnpu.emulator import background
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


def main(arguments: list[str]) -> int:
    """Return 0 once a daemon is ready at the socket, this or another one; else print the reason as JSON."""
    end = time.monotonic() + _OTHERS_S
    while True:
        try:
            background.start_by_fork(Path(arguments[0]), partial(_serve, arguments[0]))
        except Refused as error:
            # another daemon holds the lock: it starts, and will serve, or it ends, and will release the lock
            if endpoint.accepts(Path(arguments[0])):
                return 0
            if error.info.result != ZeResult.ERROR_NOT_AVAILABLE or time.monotonic() > end:
                import json  # late: the daemon has come up mostly

                print(json.dumps({"reason": str(error)}))
                return 1
        else:
            return 0


def _serve(socket: str, ready_fd: int) -> None:
    from softnpu.emulator import daemon  # late: the engine is being started meanwhile

    daemon.serve_in_background(settings(socket), ready_fd, engines=False)


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
    sys.exit(main(sys.argv[1:]))
