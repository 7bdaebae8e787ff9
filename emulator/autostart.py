"""`python -m softnpu.emulator.autostart SOCKET`: what a client runs when it finds no daemon.

Starts a daemon in the background that ends by itself when nobody has used it for a while.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import ENV_DEVICES, idle_s, spin_us
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.supervisor.settings import DaemonSettings

_IDLE_S = 60.0
_OTHERS_S = 15.0


def main(arguments: list[str]) -> int:
    """0 once a daemon is ready at the socket, this or another one; otherwise prints the reason as JSON."""
    end = time.monotonic() + _OTHERS_S
    while True:
        try:
            start_background(settings(arguments[0]))
        except Refused as error:
            # another one holds the lock: it comes up, and will serve, or it ends, and will give the lock up
            if endpoint.accepts(Path(arguments[0])):
                return 0
            if error.info.result != ZeResult.ERROR_NOT_AVAILABLE or time.monotonic() > end:
                print(json.dumps({"reason": str(error)}))
                return 1
        else:
            return 0


def settings(socket: str) -> DaemonSettings:
    """Those of a daemon that starts by itself, as the environment says. Refuses what it cannot read there."""
    return DaemonSettings(
        socket=socket,
        devices=tuple(os.environ.get(ENV_DEVICES, "4000").split(",")),
        idle_timeout_s=idle_s(_IDLE_S),
        spin_us=spin_us(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
