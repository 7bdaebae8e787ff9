"""The path of the default socket, and the names beside a socket; it imports little.

A program that has just begun uses it to see whether there may be a daemon.
"""

from __future__ import annotations

import os
import stat

from softnpu.emulator.interface.environment import ENV_SOCKET

MAX_SUN_PATH = 107
_ROOT = 0


def place() -> str:
    """Return `SOFTNPU_SOCKET`, else `softnpu.sock` in `runtime_folder`."""
    chosen = os.environ.get(ENV_SOCKET)
    return os.path.abspath(chosen) if chosen else os.path.join(runtime_folder(), "softnpu.sock")


def lock_of(socket: str) -> str:
    """Return the lock file of the daemon that serves a socket."""
    return f"{socket}.lock"


def log_of(socket: str) -> str:
    """Return the log of a background daemon that serves a socket."""
    return f"{socket}.log"


def runtime_folder() -> str:
    """Return `softnpu` in `XDG_RUNTIME_DIR`, or in /run/user/UID, or else /tmp/softnpu-UID."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        if parent and os.path.isdir(parent) and _is_ours(parent):
            return os.path.join(parent, "softnpu")
    return f"/tmp/softnpu-{os.geteuid()}"


def is_private(folder: str) -> bool:
    """Whether only this user can enter the folder of the default socket, which is made if it is missing."""
    if not os.path.lexists(folder):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            return is_private(folder)  # another program has just made it
    info = os.lstat(folder)
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o077


def _is_ours(folder: str) -> bool:
    # root may write a directory named by a variable from another user's session
    return os.stat(folder).st_uid in (os.geteuid(), _ROOT) and os.access(folder, os.W_OK, effective_ids=True)
