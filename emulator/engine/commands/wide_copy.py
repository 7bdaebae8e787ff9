"""Copies of many bytes: several threads, and stores that bypass the caches, if the part in C++ is there."""

from __future__ import annotations

import os

import numpy as np

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine import native_library

WIDE_BYTES = 4 * 1024 * 1024
"""Shorter copies are done by one thread: to start another takes 20 us, as long as a copy of 400 KiB."""
_MOST_THREADS = 4  # more do not copy faster: memory is the limit


def copy(target: Bytes, source: Bytes) -> None:
    """Copy bytes to bytes that do not overlap them."""
    size = target.nbytes
    library = native_library.library() if size >= WIDE_BYTES else None
    if library is None:
        np.copyto(target, source)
        return
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    library.softnpu_copy(target.ctypes.data, source.ctypes.data, size, threads)
