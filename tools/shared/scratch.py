"""Temporary folders of commands, locked while the command lives: `clean` need not guess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from softnpu.emulator.common.file_claim import FileClaim, try_lock

PATTERNS: Final = ("softnpu-private-*", "softnpu-stress-*", "softnpu-bench-*", "softnpu-node-*")
REPORTS: Final = "reports"
"""Reports of a failed stress run, for the user."""
_LOCK: Final = "in-use.lock"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, also in processes forked meanwhile."""
    claim = FileClaim.acquire(folder / _LOCK)
    try:
        yield
    finally:
        if claim is not None:
            claim.release()


def is_in_use(folder: Path) -> bool | None:
    """Return whether a live command has the folder; None without a lock."""
    return is_locked(folder / _LOCK)


def is_locked(path: Path) -> bool | None:
    """Return whether a file's lock is held; None without one. An unreadable file counts as held."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return True
    try:
        return not try_lock(fd)
    except OSError:  # a file system without locks
        return True
    finally:
        os.close(fd)
