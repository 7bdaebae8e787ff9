"""The guard of a process against truncation of files that it has mapped (`driver/native/guard`).

Access to a page past the new end of such a file raises SIGBUS. The library maps zero pages there and marks
the mapping; the process continues with void data, and checks the mark before it uses them.
"""

from __future__ import annotations

import ctypes
import functools
import os

from softnpu.emulator.common import native_files

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
        """Stop guarding these pages."""
        self._library.softnpu_guard_remove(slot)


@functools.cache
def guard() -> _Guard:
    """Return the guard of this process, which is installed with the first foreign memory."""
    return _Guard()
