"""Counters that processes share: a memory file that outlives each, a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.emulator.common import linux

_COUNT = struct.Struct("=Q")
COUNT_SIZE = _COUNT.size
"""Bytes of one counter."""


class SharedCounts:
    """The counters in the memory file `fd`, which ends with them. Read and write them inside `locked`."""

    def __init__(self, fd: int, counters: int) -> None:
        self.fd = fd
        self._end = weakref.finalize(self, os.close, fd)
        self._map = mmap.mmap(fd, _COUNT.size * counters)
        self._lock = threading.Lock()

    @classmethod
    def new(cls, name: str, counters: int) -> SharedCounts:
        """New counters, all 0."""
        return cls(linux.fixed_memfd(name, _COUNT.size * counters), counters)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the counters."""
        with self._lock:
            # the kernel drops the lock of a process that is killed
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def get(self, at: int) -> int:
        """Return the counter."""
        (count,) = _COUNT.unpack_from(self._map, _COUNT.size * at)
        return int(count)

    def put(self, at: int, count: int) -> None:
        """Set the counter."""
        _COUNT.pack_into(self._map, _COUNT.size * at, count)

    def close(self) -> None:
        """Close the mapping, and the descriptor."""
        self._map.close()
        self._end()
