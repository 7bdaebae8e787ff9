"""A daemon in the foreground that dies with the test: `daemon_main.py SETTINGS READY-FD OPEN-FILES PARENT`.

OPEN-FILES is the hard limit of its descriptors; 0 leaves it as it is.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from softnpu.emulator import daemon
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.settings import DaemonSettings


def main(arguments: list[str]) -> int:
    """Serve until it is told to stop; 3 and the fault on the ready descriptor when refused."""
    settings, ready, open_files, parent = arguments
    linux.die_with_parent(int(parent))
    if int(open_files):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(open_files), int(open_files)))
    decoded = msgspec.json.decode(settings, type=DaemonSettings)
    try:
        decoded.check()
        daemon.configure_logging(decoded.log_level)
        daemon.serve(decoded, int(ready))
    except Refused as error:
        os.write(int(ready), msgspec.json.encode(error.info))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
