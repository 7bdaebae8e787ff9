"""Foreign memory: files whose size is not sealed, so that their owner may cut them at any moment.

The guard (`common/cut_guard.py`) marks a mapping that was cut. It stays void, also when its file grows again.
A file that was cut inside of a page causes no fault, so its size is looked at as well.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable

from softnpu.emulator.common.cut_guard import guard
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult


class ForeignFile:
    """A file that others can cut, of which this engine has mapped a part; it needs `expected` bytes of it."""

    __slots__ = ("__weakref__", "_expected", "_fd", "_marks", "_pages", "_slot")

    def __init__(self, fd: int, expected: int, pages: object, slot: int) -> None:
        self._fd = os.dup(fd)
        self._expected = expected
        self._pages = pages  # the slot is theirs
        self._slot = slot
        self._marks = guard().marks
        weakref.finalize(self, os.close, self._fd).atexit = False

    def failure(self) -> ErrorInfo | None:
        """Return why what was read from it, or written to it, is void; None if it is not."""
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
            hint="its owner must not cut it, nor fill up /dev/shm; open it again, with a new queue",
        )

    def _path(self) -> str:
        return os.readlink(f"/proc/self/fd/{self._fd}").removesuffix(" (deleted)")


def failure_of(files: Iterable[ForeignFile]) -> ErrorInfo | None:
    """Return the failure of the first file that was cut, or None."""
    for file in files:
        info = file.failure()
        if info is not None:
            return info
    return None


def check(files: Iterable[ForeignFile]) -> None:
    """Refuse to go on if one of the files was cut."""
    info = failure_of(files)
    if info is not None:
        raise Refused(info)


assert mmap.PAGESIZE == 4096, "the guard replaces pages of this size"
