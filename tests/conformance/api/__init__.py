"""The functions of Level Zero and the NPU extensions as the suite calls them: C names in snake_case.

Rules for every method of both drivers:

- It never raises for a result. A call without outputs returns its `ZeResult`, one with outputs an `Answer`.
- `None` is the null handle, `0` the null pointer, a descriptor `None` a null descriptor pointer;
  `out=False` passes a null pointer for the outputs. So every wrong call is expressible.
- Handles are opaque, memory is an address in this process (`read` and `write` go through the mapping).
- Times are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

import ctypes

from tests.conformance.api.structures import Pointer


class HostMemory:
    """Memory access common to all drivers: device memory is mapped into this process."""

    @staticmethod
    def read(pointer: Pointer, size: int) -> bytes:
        """Read bytes of an allocation."""
        return ctypes.string_at(pointer, size)

    @staticmethod
    def write(pointer: Pointer, data: bytes) -> None:
        """Store bytes into an allocation."""
        ctypes.memmove(pointer, data, len(data))
