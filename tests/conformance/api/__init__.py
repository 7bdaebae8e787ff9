"""The abstract driver: the C functions of Level Zero and the NPU extensions, in snake_case.

Rules that hold for every method:

- It never raises for a result. A call without outputs gives its `ZeResult`, one with outputs an `Answer`.
- `None` is the null handle, `0` the null pointer, a descriptor `None` a null descriptor pointer;
  `out=False` passes a null pointer for the outputs. So every wrong call can be made.
- Handles are opaque, memory is an address in this process (`read` and `write` go through the mapping).
- Times are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.conformance.api.commands import CommandsApi
from tests.conformance.api.core import CoreApi
from tests.conformance.api.graphs import GraphsApi
from tests.conformance.api.structures import Pointer


class LevelZero(CoreApi, CommandsApi, GraphsApi):
    """A driver that a test process has loaded. One instance is one session with the daemon."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session; everything that it still holds goes with it."""

    @staticmethod
    def read(pointer: Pointer, size: int) -> bytes:
        """Bytes of an allocation, through the host mapping."""
        return ctypes.string_at(pointer, size)

    @staticmethod
    def write(pointer: Pointer, data: bytes) -> None:
        """Stores bytes into an allocation, through the host mapping."""
        ctypes.memmove(pointer, data, len(data))


OpenDriver: TypeAlias = Callable[[Path], LevelZero]
"""Opens a session with the daemon at this socket."""
