"""A count of what has ended in this process: queues, and connections to a daemon.

A waiter that sleeps in C++ (`submit_calls`) compares it now and then, and only if it has changed looks in
Python what that was.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Final

COUNT: Final = ctypes.c_uint64()
"""Its value is read before looking whether something has ended."""
ADDRESS: Final = ctypes.addressof(COUNT)
_numbers: Final = itertools.count(1)


def note() -> None:
    """Count an ending: after what ends says so, and before its memory or descriptor may be used again."""
    # taken at once: of two threads that add one, the later could undo a third one's, and a waiter miss it
    COUNT.value = next(_numbers)
