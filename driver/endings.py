"""A count of what has ended in this process: queues, and connections to a daemon.

A waiter that sleeps in C++ (`submit_calls`) compares it now and then, and only if it has changed looks in
Python what that was.
"""

from __future__ import annotations

import ctypes
from typing import Final

COUNT: Final = ctypes.c_uint64()
"""Its value is read before looking whether something has ended."""
ADDRESS: Final = ctypes.addressof(COUNT)


def note() -> None:
    """Count an ending: after what ends says so, and before its memory or descriptor may be used again."""
    COUNT.value += 1
