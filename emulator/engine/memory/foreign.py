"""Foreign memory: files whose size is not sealed, so that their owner may cut them at any moment.

Whoever touches a page behind the new end of such a file gets SIGBUS. A small library (`driver/native/guard`)
puts empty pages there and marks the mapping; the engine goes on with void data, and asks for the mark before
it believes them. A mapping that was marked stays void, also when its file grows again. A file that was cut
inside of a page causes no fault, so its size is looked at as well.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Iterable

from softnpu.emulator.common import native_files
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

_SLOTS = 1 << 16


class _Guard:
    """The library that catches SIGBUS in this process. Raises `OSError` if it cannot."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(native_files.guard()))
        library.softnpu_guard_add.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.softnpu_guard_add.restype = ctypes.c_long
        library.softnpu_guard_remove.argtypes = (ctypes.c_long,)
        library.softnpu_guard_marks.restype = ctypes.POINTER(ctypes.c_uint32 * _SLOTS)
        code = library.softnpu_guard_install()
        if code:
            raise OSError(code, f"SIGBUS cannot be handled: {os.strerror(code)}")
        self._library = library
        self.marks = memoryview(library.softnpu_guard_marks().contents).cast("B").cast("I")

    def add(self, address: int, size: int) -> int:
        """Guard whole pages; the number of their mark."""
        slot: int = self._library.softnpu_guard_add(address, size)
        if slot < 0:
            raise OSError(f"the table of the guard is full: {_SLOTS} mappings")
        return slot

    def remove(self, slot: int) -> None:
        """Guard these pages no longer."""
        self._library.softnpu_guard_remove(slot)


@functools.cache
def guard() -> _Guard:
    """Return the guard of this process, which is installed with the first foreign memory."""
    return _Guard()


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
