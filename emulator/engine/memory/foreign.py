"""Foreign memory: files without a size seal, which their owner may truncate at any moment.

The guard (`common/cut_guard.py`) marks a truncated mapping. It stays void, even if its file grows again.
Truncation within a page causes no fault, so the file size is checked as well.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable

from softnpu.emulator.common.cut_guard import guard
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult


class ForeignFile:
    """A file that others can truncate, partly mapped by this engine, which needs `expected` bytes of it."""

    __slots__ = ("__weakref__", "_expected", "_fd", "_marks", "_pages", "_slot")

    def __init__(self, fd: int, expected: int, pages: object, slot: int) -> None:
        self._fd = os.dup(fd)
        self._expected = expected
        self._pages = pages  # they own the slot
        self._slot = slot
        self._marks = guard().marks
        weakref.finalize(self, os.close, self._fd).atexit = False

    def failure(self) -> ErrorInfo | None:
        """Return the error if the file was truncated and its data are void, else None."""
        size = os.fstat(self._fd).st_size
        is_broken = self._marks[self._slot] != 0
        if size >= self._expected and not is_broken:
            return None
        found = f"{size} bytes" if size < self._expected else f"a page was missing; it has {size} bytes now"
        return ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object=f"shared memory {self._path()}",
            found=found,
            expected=f"{self._expected} bytes, as when it was imported",
            hint="its owner must not cut it, nor fill up its file system; open it again, with a new queue",
        )

    def _path(self) -> str:
        return os.readlink(f"/proc/self/fd/{self._fd}").removesuffix(" (deleted)")


def failure_of(files: Iterable[ForeignFile]) -> ErrorInfo | None:
    """Return the failure of the first truncated file, or None."""
    for file in files:
        info = file.failure()
        if info is not None:
            return info
    return None


def check(files: Iterable[ForeignFile]) -> None:
    """Raise `Refused` if one of the files was truncated."""
    info = failure_of(files)
    if info is not None:
        raise Refused(info)


assert mmap.PAGESIZE == 4096, "the guard replaces pages of this size"
