"""Which very file weights lie in, and whether it was written to since."""

from __future__ import annotations

import os
from collections.abc import Sequence

from softnpu.emulator.common import linux


def file_identities(fds: Sequence[int], sealed_is_enough: bool = True) -> tuple[bytes, ...]:
    """The very files behind descriptors, and their last change; empty for content that cannot change.

    May hang with the file system that a file lies on. Raises `OSError`.
    """
    return tuple(_identity(fd, sealed_is_enough) for fd in fds)


def _identity(fd: int, sealed_is_enough: bool) -> bytes:
    if sealed_is_enough and linux.has_seals(fd, linux.SEALS_IMMUTABLE):
        return b""
    info = os.fstat(fd)
    return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}".encode()
