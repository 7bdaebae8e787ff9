"""The home directory of this process: OpenVINO does not import without one."""

from __future__ import annotations

import os
import pwd


def ensure_home() -> bool:
    """Set HOME to / if this user has no home directory, as containers do; return whether it was missing."""
    if os.environ.get("HOME"):
        return False
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ["HOME"] = "/"
        return True
    return False
