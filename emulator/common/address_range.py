"""Mappings that `mmap` cannot make: pieces of several files one after the other, and aligned ones.

OpenVINO wants all constants of a model in one buffer. The range is reserved first (inaccessible, costs
nothing), then every piece is mapped over a part of it (MAP_FIXED). Pieces are private and writable, because
numpy and OpenVINO share writable memory only. Nothing writes to them, so their pages stay those of the page
cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4
_ENTRY = 8  # of a page in /proc/self/pagemap; bit 63: present, 62: swapped, 61: of a file or shared
_PAGES_AT_ONCE = 1 << 18
_MOST_ALIGNED = 1 << 46  # half of the addresses of a process
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
        """Map `length` bytes from `offset` of `fd` (a multiple of the page) at byte `at` (likewise).

        The last page is mapped whole. Raises `OSError`.
        """
        if at % PAGE or offset % PAGE or not 0 < length <= self.size - at:
            raise ValueError(f"{length} bytes at {at} of a range of {self.size}")
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        _checked(_mmap(self.address + at, length, protection, flags, fd, offset), length)

    def before_unmap(self, call: Callable[[int], None], argument: int) -> None:
        """Call this before the range is unmapped."""
        # finalizers run last in, first out
        weakref.finalize(self._bytes, call, argument).atexit = False

    def release_pages(self, at: int, length: int) -> None:
        """Release mapped pages; a page that is touched again is read from its file.

        Does nothing if one of them was ever written to: its content would be lost.
        """
        if not self._is_written(at, length):
            _madvise(self.address + at, length, _MADV_DONTNEED)

    def _is_written(self, at: int, length: int) -> bool:
        import numpy as np  # the daemon maps ranges as well, and starts without numpy

        first, count = (self.address + at) // PAGE, -(-length // PAGE)
        # smaps would do as well, but walks through all memory of the process: a second in all for 2 GiB
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            for start in range(0, count, _PAGES_AT_ONCE):
                pages = min(_PAGES_AT_ONCE, count - start)
                entries = os.pread(file.fileno(), pages * _ENTRY, (first + start) * _ENTRY)
                if len(entries) != pages * _ENTRY:
                    raise OSError(errno.EIO, f"pagemap: {len(entries)} bytes; expected {pages * _ENTRY}")
                flags = np.frombuffer(entries, np.uint64) >> np.uint64(61)
                is_of_file = (flags & np.uint64(1)) != 0
                # a written page of a private mapping is there, or swapped out, and no longer the file's
                if bool(((flags != 0) & ~is_of_file).any()):
                    return True
        return False

    def view(self) -> memoryview:
        """Return all bytes; only mapped ones may be touched."""
        return memoryview(self._bytes).cast("B")


def map_shared_aligned(fd: int, size: int, alignment: int) -> memoryview:
    """Return the whole file, shared and writable, at a multiple of `alignment`; unmapped with the last view.

    Raises `OSError`, also when there is no room for that in the addresses of this process.
    """
    if alignment > _MOST_ALIGNED:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    room = _checked(_mmap(None, size + alignment, _PROT_NONE, flags, -1, 0), size + alignment)
    address = -(-room // alignment) * alignment
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        _checked(_mmap(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0), size)
    except OSError:
        _munmap(room, size + alignment)
        raise
    end = address + -(-size // PAGE) * PAGE
    for start, length in ((room, address - room), (end, room + size + alignment - end)):
        if length > 0:
            _munmap(start, length)
    data = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(data, _munmap, address, size).atexit = False
    return memoryview(data).cast("B")


def map_for_reading(fd: int, size: int) -> memoryview:
    """Return the first `size` bytes of a file, shared, read-only; keeps no descriptor. Raises `OSError`."""
    return _map_whole(fd, size, mmap.PROT_READ).toreadonly()


def map_for_writing(fd: int, size: int) -> memoryview:
    """Return the first `size` bytes of a file, shared and writable. Raises `OSError`."""
    return _map_whole(fd, size, mmap.PROT_READ | mmap.PROT_WRITE)


def map_pages(fd: int, size: int, offset: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Return pages of a file from `offset` on, shared and writable, maybe behind its end; raises `OSError`.

    The module `mmap` would compare with the size of the file, which may change before it maps.
    """
    return _map(fd, size, mmap.PROT_READ | mmap.PROT_WRITE, offset)


def map_pages_for_reading(fd: int, size: int, offset: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Return the same of a file open for reading. A write changes a private copy, never the file."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    return _map(fd, size, protection, offset, mmap.MAP_PRIVATE | _MAP_NORESERVE)


def _map_whole(fd: int, size: int, protection: int) -> memoryview:
    return memoryview(_map(fd, size, protection, 0)).cast("B")


def _map(
    fd: int, size: int, protection: int, offset: int, flags: int = mmap.MAP_SHARED
) -> ctypes.Array[ctypes.c_ubyte]:
    address = _checked(_mmap(None, size, protection, flags, fd, offset), size)
    data = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(data, _munmap, address, size).atexit = False
    return data


def _checked(address: int | None, size: int) -> int:
    if address is None or address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {size} bytes: {os.strerror(error)}")
    return address
