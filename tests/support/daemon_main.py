"""A daemon in the foreground that dies with the test: `daemon_main.py SETTINGS OPEN-FILES PARENT READY-FD`.

OPEN-FILES is the hard limit of its descriptors; 0 leaves it as it is.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from softnpu.emulator import daemon
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.settings import DaemonSettings


def main(arguments: list[str], descriptors: list[int]) -> int:
    """Serve until told to stop; if refused, return 3 and write the error to the ready descriptor."""
    settings, open_files = arguments
    ready = daemon.ReadyPipe(*descriptors)
    if int(open_files):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(open_files), int(open_files)))
    decoded = msgspec.json.decode(settings, type=DaemonSettings)
    try:
        decoded.check()
        daemon.configure_logging(decoded.log_level)
        daemon.serve(decoded, ready)
    except Refused as error:
        ready.refuse(error.info)
        return 3
    return 0


if __name__ == "__main__":
    *_words, _parent, _ready = sys.argv[1:]
    linux.die_with_parent(int(_parent))
    sys.exit(main(_words, [int(_ready)]))
