"""The identity of weights files, and whether they were written to since."""

from __future__ import annotations

import os
from collections.abc import Sequence

from softnpu.emulator.common import linux


def file_identities(fds: Sequence[int], sealed_is_enough: bool = True) -> tuple[bytes, ...]:
    """Return the identities and last changes of descriptors' files; empty for immutable content.

    May hang with the file's file system. Raises `OSError`.
    """
    return tuple(_identity(fd, sealed_is_enough) for fd in fds)


def _identity(fd: int, sealed_is_enough: bool) -> bytes:
    if sealed_is_enough and linux.has_seals(fd, linux.SEALS_IMMUTABLE):
        return b""
    info = os.fstat(fd)
    return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}".encode()
