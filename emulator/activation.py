"""Socket activation: a listening socket created by systemd, or a similar program, for this daemon.

It is passed as descriptor 3, announced by `LISTEN_FDS` and `LISTEN_PID` (sd_listen_fds(3)). Its path outlives
the daemon: its creator keeps listening, and starts a daemon for the next client.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from pathlib import Path

from softnpu.emulator.interface.result import Refused, ZeResult, refuse

log = logging.getLogger(__name__)

_FIRST_FD = 3
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
_HINT = "with systemd: ListenSequentialPacket= with that path, SocketMode=0600, Accept=no"


def passed_sockets() -> int:
    """Return the number of descriptors passed to this process; 0 if none, or if meant for another."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return 0
    count = os.environ.get("LISTEN_FDS", "")
    return int(count) if count.isascii() and count.isdigit() else 0


def take_listener(path: Path, *, others: bool) -> socket.socket | None:
    """Return the listener that was passed to this process for `path`; None if there is none.

    `others`: users besides the owner may connect. Refuses what is no listener at `path`. The variables that
    announce it are removed: no child takes them for its own.
    """
    count = passed_sockets()
    for name in _VARIABLES:
        os.environ.pop(name, None)
    if not count:
        return None
    if count > 1:
        raise _unusable(f"{count} descriptors", "one")
    try:
        passed = socket.socket(fileno=_FIRST_FD)
    except OSError as error:
        raise _unusable(f"descriptor {_FIRST_FD}: {error.strerror}", f"a socket at {path}") from error
    try:
        passed.set_inheritable(False)
        _check(passed, path, others)
        passed.listen(4096)  # again: clients see the credentials of who called it last
    except BaseException:
        passed.close()
        raise
    log.info("the socket was passed by process %d", os.getppid())
    return passed


def _check(passed: socket.socket, path: Path, others: bool) -> None:
    """Refuse a socket that cannot be the daemon's."""
    kind = passed.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    if passed.family != socket.AF_UNIX or kind != socket.SOCK_SEQPACKET:
        raise _unusable("another kind of socket", "a Unix socket for sequential packets")
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise _unusable("a socket that does not listen", "one that does")
    place = passed.getsockname()
    if not isinstance(place, str) or not place:
        raise _unusable("a socket without a path", f"{path}")
    try:
        same = os.path.samefile(place, path)
        mode = stat.S_IMODE(path.lstat().st_mode)
        owner = path.lstat().st_uid
    except OSError as error:
        raise _unusable(f"{place}, where {error.filename} is: {error.strerror}", f"{path}") from error
    if not same:
        raise _unusable(place, f"{path}; SOFTNPU_SOCKET or --socket chooses another")
    if owner != os.geteuid():
        raise _unusable(f"a file of user {owner}", f"one of user {os.geteuid()}")
    if mode & 0o077 and not others:
        raise _unusable(f"mode {mode:o}", "mode 600, or --allow-user")


def _unusable(found: str, expected: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        "passed socket (LISTEN_FDS)",
        found=found,
        expected=expected,
        hint=_HINT,
    )
