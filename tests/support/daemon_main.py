"""A daemon as a foreground program that dies with the test: `daemon_main.py SETTINGS READY-FD PATCHES`.

PATCHES is a JSON object of `module:NAME` to number: constants that a test cannot wait for, set before the
daemon starts.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys

import msgspec

from softnpu.emulator import daemon
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.settings import DaemonSettings


def main(arguments: list[str]) -> int:
    """Serves until it is told to stop; 3 and the fault on the ready descriptor when refused."""
    settings, ready, patches, parent = arguments
    linux.die_with_parent(int(parent))
    for place, value in json.loads(patches).items():
        module, _, name = place.partition(":")
        if module == "rlimit":
            limit = getattr(resource, name)
            resource.setrlimit(limit, (value, value))
            continue
        target = importlib.import_module(module)
        if not hasattr(target, name):
            raise AttributeError(f"{module} has no {name} to patch")
        setattr(target, name, value)
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
