"""Words of memory that the kernel changes when the thread that holds them ends, however it ends.

They are robust futexes: each holds the number of the thread, and a list that the kernel knows names them all.
At the thread's end it replaces the number, and wakes one sleeper on each word.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

_SYS_SET, _SYS_GET = (99, 100) if os.uname().machine == "aarch64" else (273, 274)
_WAITERS: Final = 1 << 31
"""There may be sleepers: without it the kernel wakes nobody."""
ENDED: Final = 1 << 30
"""FUTEX_OWNER_DIED, without the number of a thread."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Head(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("offset", ctypes.c_long), ("pending", ctypes.c_void_p))


_SIZE: Final = ctypes.c_size_t(ctypes.sizeof(_Head))


class RobustWords:
    """Words of this thread, every 8 bytes from `address` on; all of them until `close`, in the same thread.

    The list lies in memory of this process alone: who can write the words cannot lead the kernel astray.
    """

    def __init__(self, address: int, count: int) -> None:
        """Raise `OSError` where the kernel has no robust futexes."""
        # each word has a link at one distance, which leads to the next one, the last one back to the head
        self._links = (ctypes.c_void_p * count)()
        self._head = _Head()
        links = ctypes.addressof(self._links)
        for index in range(count - 1):
            self._links[index] = links + 8 * (index + 1)
        self._links[count - 1] = ctypes.addressof(self._head)
        self._head.first, self._head.offset = links, address - links
        # the C library's own list, for its robust mutexes, of which this thread holds none
        self._before, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call(_SYS_GET, 0, ctypes.byref(self._before), ctypes.byref(size))
        _call(_SYS_SET, ctypes.byref(self._head), _SIZE)
        self.held: Final = threading.get_native_id() | _WAITERS
        """The value of a held word; the caller stores it."""

    def close(self) -> None:
        """Give the thread the list back that it had."""
        _call(_SYS_SET, self._before, _SIZE)


def _call(number: int, *arguments: object) -> None:
    if _libc.syscall(ctypes.c_long(number), *arguments) == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"robust futexes: {os.strerror(error)}")
