"""The path of the default socket, without a check of anything there; it imports little.

A program that has just begun uses it to see whether there may be a daemon.
"""

from __future__ import annotations

import os

from softnpu.emulator.interface.environment import ENV_SOCKET

_ROOT = 0


def place() -> str:
    """Return `SOFTNPU_SOCKET`, else `softnpu.sock` in `runtime_folder`."""
    chosen = os.environ.get(ENV_SOCKET)
    return os.path.abspath(chosen) if chosen else os.path.join(runtime_folder(), "softnpu.sock")


def runtime_folder() -> str:
    """Return `softnpu` in `XDG_RUNTIME_DIR`, or in /run/user/UID, or else /tmp/softnpu-UID."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        if parent and os.path.isdir(parent) and _is_ours(parent):
            return os.path.join(parent, "softnpu")
    return f"/tmp/softnpu-{os.geteuid()}"


def _is_ours(folder: str) -> bool:
    # root may write a directory named by a variable from another user's session
    return os.stat(folder).st_uid in (os.geteuid(), _ROOT) and os.access(folder, os.W_OK, effective_ids=True)
