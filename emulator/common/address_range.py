"""A contiguous range of addresses into which pieces of several files are mapped, without a copy.

OpenVINO wants all constants of a model in one buffer. The range is reserved first (inaccessible, costs
nothing), then every piece is mapped over a part of it (MAP_FIXED). Pieces are private and writable: numpy
and OpenVINO share writable memory only. Nobody writes to them, so their pages stay those of the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_munmap.restype = ctypes.c_int
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int


class AddressRange:
    """`size` bytes of addresses (a multiple of the page, at least one), unmapped with their last view."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.size = size
        self.address: int = _checked(_mmap(None, size, _PROT_NONE, flags, -1, 0), size)
        self._bytes = (ctypes.c_ubyte * size).from_address(self.address)
        # views refer to this array: it lives as long as the last of them
        weakref.finalize(self._bytes, _munmap, self.address, size).atexit = False

    def map(self, at: int, fd: int, offset: int, length: int) -> None:
        """Maps `length` bytes from `offset` of `fd` (a multiple of the page) at byte `at` (likewise).

        The last page is mapped whole. Raises `OSError`.
        """
        if at % PAGE or offset % PAGE or not 0 < length <= self.size - at:
            raise ValueError(f"{length} bytes at {at} of a range of {self.size}")
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        _checked(_mmap(self.address + at, length, protection, flags, fd, offset), length)

    def release_pages(self, at: int, length: int) -> None:
        """Takes mapped pages out of this process; what is touched again comes back from its file.

        Nothing happens if a page of the whole range was ever written to: that would be lost.
        """
        if not self._is_written():
            _madvise(self.address + at, length, _MADV_DONTNEED)

    def _is_written(self) -> bool:
        inside = False
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                if line[:1] in b"0123456789abcdef":
                    start = int(line[: line.index(b"-")], 16)
                    inside = 0 <= start - self.address < self.size
                elif inside and line.startswith(b"Anonymous:") and line.split()[1] != b"0":
                    return True
        return False

    def view(self) -> memoryview:
        """All bytes; only mapped ones may be touched."""
        return memoryview(self._bytes).cast("B")


def _checked(address: int | None, size: int) -> int:
    if address is None or address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {size} bytes: {os.strerror(error)}")
    return address
