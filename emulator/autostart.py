"""`python -m softnpu.emulator.autostart SOCKET`: what a client runs when it finds no daemon.

Starts a daemon in the background that ends by itself when nobody has used it for a while.
"""

from __future__ import annotations

import json
import os
import sys

from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface.environment import number, spin_us
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.interface.version import ENV_IDLE_S, ENV_PLATFORM
from softnpu.emulator.supervisor.settings import DaemonSettings

_IDLE_S = 60.0


def main(arguments: list[str]) -> int:
    """0 once the daemon is ready; otherwise prints the reason as JSON."""
    try:
        start_background(settings(arguments[0]))
    except Refused as error:
        print(json.dumps({"reason": str(error)}))
        return 1
    return 0


def settings(socket: str) -> DaemonSettings:
    """Those of a daemon that starts by itself, as the environment says. Refuses what it cannot read there."""
    return DaemonSettings(
        socket=socket,
        devices=tuple(os.environ.get(ENV_PLATFORM, "4000").split(",")),
        idle_timeout_s=number(ENV_IDLE_S, float, _IDLE_S, "seconds, 0 for a daemon that stays"),
        spin_us=spin_us(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
