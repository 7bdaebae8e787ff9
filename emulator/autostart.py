"""`python -m softnpu.emulator.autostart SOCKET`: what a client runs when it finds no daemon.

Starts a daemon in the background that ends by itself when nobody has used it for a while.
"""

from __future__ import annotations

import json
import os
import sys

from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.interface.version import ENV_IDLE_S, ENV_PLATFORM, ENV_SPIN_US
from softnpu.emulator.supervisor.settings import DEFAULT_SPIN_US, DaemonSettings

_IDLE_S = 60.0


def main(arguments: list[str]) -> int:
    """0 once the daemon is ready; otherwise prints the reason as JSON."""
    try:
        settings = DaemonSettings(
            socket=arguments[0],
            devices=tuple(os.environ.get(ENV_PLATFORM, "4000").split(",")),
            idle_timeout_s=float(os.environ.get(ENV_IDLE_S, _IDLE_S)),
            spin_us=int(os.environ.get(ENV_SPIN_US, DEFAULT_SPIN_US)),
        )
        start_background(settings)
    except (Refused, ValueError) as error:
        print(json.dumps({"reason": str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
