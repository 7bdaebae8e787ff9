"""Memory as numpy sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    """Bytes of a mapping: a view, never a copy."""
    Words = npt.NDArray[np.uint64]
    """Words of 64 bits that several processes share."""
else:
    Bytes = Words = np.ndarray  # an engine leaves out what numpy has for types

_ALIGNMENT = 64


def aligned(size: int, value: int = 0) -> Bytes:
    """Return memory aligned like a client's, filled with this byte."""
    memory = np.full(size + _ALIGNMENT, value, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
