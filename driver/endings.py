"""A count of what has ended in this process: queues, and connections to a daemon.

A waiter in C++ (`submit_calls`) sleeps on it as well; when it changes, Python looks what that was.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Final

from softnpu.emulator.common import linux

COUNT: Final = ctypes.c_uint64()
"""Its value is read before looking whether something has ended."""
ADDRESS: Final = ctypes.addressof(COUNT)
"""Its low half is a futex word."""
_numbers: Final = itertools.count(1)


def note() -> None:
    """Count an ending: after what ends says so, and before its memory or descriptor may be used again."""
    # taken at once: of two threads that add one, the later could undo a third one's, and a waiter miss it
    COUNT.value = next(_numbers)
    linux.futex_wake(ADDRESS)
