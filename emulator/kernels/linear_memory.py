"""The linear memory of a kernel's instance: its own part, and behind it the host's, where tensors lie.

A tensor in a memory file is mapped over pages of the linear memory, nothing is copied then. Only pages that
belong to it entirely are: what else lies on a page is none of the kernel's business. The rest is copied.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Iterator
from typing import Final

import wasmtime

PAGE: Final = mmap.PAGESIZE
MOST_OF_HOST: Final = 3 << 30
"""Bytes of the host's part at most; a linear memory has 4 GiB."""
_WASM_PAGE: Final = 64 << 10
_MADV_DONTNEED: Final = 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
# of an entry of /proc/self/pagemap the last byte: present, swapped, of a file; a copy is of no file
_UNWRITTEN: Final = bytes(byte for byte in range(256) if byte & 0x20 or not byte & 0xC0)
_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mmap = _libc.mmap
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_mmap.restype = ctypes.c_void_p


class LinearMemory:
    """The memory of an instance. Addresses count from its beginning."""

    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory, allowance: int) -> None:
        """Take over a fresh instance's memory, which the kernel itself may grow by `allowance` bytes."""
        self._store, self._memory = store, memory
        self._allowance = allowance
        self._base = ctypes.addressof(memory.data_ptr(store).contents)
        self._own = self._size = self._end = memory.data_len(store)
        self._written = dict(self._differences())

    def is_intact(self) -> bool:
        """Whether the kernel has not grown it."""
        return self._memory.data_len(self._store) == self._size

    def reset(self) -> None:
        """Return to its beginning what is not allocated: a kernel keeps nothing between runs."""
        self.clear(0, self._own)
        if self._end < self._size:
            self.clear(self._end, self._size - self._end)
        for at, content in self._written.items():
            self.write(at, content)

    def clear(self, at: int, size: int) -> None:
        """Return pages to their first content: zeroes in the host's part, or what their file has."""
        _check(_madvise(self._base + at, size, _MADV_DONTNEED))

    def _differences(self) -> Iterator[tuple[int, bytes]]:
        """Yield the pages of a fresh memory that `clear` would not restore, as what wasmtime has copied."""
        fresh = {}
        for at in range(0, self._own, PAGE):
            content = self.read(at, PAGE)
            if content.count(0) < PAGE:
                fresh[at] = content
        self.clear(0, self._own)
        for at, content in fresh.items():
            if self.read(at, PAGE) != content:
                self.write(at, content)
                yield at, content

    # ------------------------------------------------------------ the host's part

    def allocate(self, size: int) -> int | None:
        """Return the address of `size` bytes of whole pages, for good; None if there is no room."""
        at, end = self._end, self._end + _whole_pages(size)
        if end - self._own > MOST_OF_HOST:
            return None
        if end > self._size:
            pages = -(-(end - self._size) // _WASM_PAGE)
            # the limit is of both parts together
            self._store.set_limits(memory_size=self._size + pages * _WASM_PAGE + self._allowance)
            try:
                self._memory.grow(self._store, pages)
            except wasmtime.WasmtimeError:
                return None
            self._size += pages * _WASM_PAGE
        self._end = end
        return at

    def map(self, at: int, fd: int, offset: int, size: int, *, writable: bool, private: bool = False) -> None:
        """Map whole pages of a memory file there. A write to what is not writable is a trap.

        `private`: it changes a copy instead, until `clear`; `is_written` tells.
        """
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable or private else 0)
        self._map(at, size, fd, offset, protection, _MAP_PRIVATE if private else _MAP_SHARED)

    def is_written(self, at: int, size: int) -> bool:
        """Whether pages that are mapped privately have been written since they were cleared."""
        entries = os.pread(_pagemap(), size // PAGE * 8, (self._base + at) // PAGE * 8)
        return bool(entries[7::8].translate(None, _UNWRITTEN))

    def _map(self, at: int, size: int, fd: int, offset: int, protection: int, flags: int) -> None:
        address = _mmap(self._base + at, size, protection, flags | _MAP_FIXED, fd, offset)
        _check(-1 if address == _FAILED else 0)

    # ------------------------------------------------------------ bytes

    def write(self, at: int, content: bytes) -> None:
        """Write to memory of the host's part."""
        ctypes.memmove(self._base + at, content, len(content))

    def read(self, at: int, size: int) -> bytes:
        """Read; the range is known to lie inside."""
        return ctypes.string_at(self._base + at, size)

    def read_text(self, at: int, most: int) -> str:
        """Read a text of the kernel, up to a zero byte; printable, whatever it is."""
        size = max(0, min(most, self._memory.data_len(self._store) - at))
        return self.read(at, size).partition(b"\0")[0].decode(errors="replace") if at else ""

    def view(self, at: int, size: int) -> memoryview:
        """Return a writable view, for reads from and writes to a file; valid while the instance lives."""
        return memoryview((ctypes.c_char * size).from_address(self._base + at)).cast("B")


@functools.cache
def _pagemap() -> int:
    return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)


def _whole_pages(size: int) -> int:
    return max(1, -(-size // PAGE)) * PAGE


def _check(result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
