"""Temporary folders of commands. A lock in one lasts as long as its command: `clean` need not guess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from softnpu.emulator.common.file_claim import FileClaim, try_lock

PATTERNS: Final = ("softnpu-private-*", "softnpu-stress-*", "softnpu-bench-*")
REPORTS: Final = "reports"
"""What a person reads of a stress run that failed."""
_LOCK: Final = "in-use.lock"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which processes that are forked meanwhile hold as well."""
    claim = FileClaim.acquire(folder / _LOCK)
    try:
        yield
    finally:
        if claim is not None:
            claim.release()


def is_in_use(folder: Path) -> bool | None:
    """Whether a command that lives has the folder; None for one without a lock."""
    return is_locked(folder / _LOCK)


def is_locked(path: Path) -> bool | None:
    """Whether somebody holds the lock of a file; None without one. What cannot be opened counts as held."""
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
