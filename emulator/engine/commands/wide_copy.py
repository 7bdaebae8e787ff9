"""Large copies: several threads and cache-bypassing stores, if the C++ library is there."""

from __future__ import annotations

import os

import numpy as np

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine import native_library

WIDE_BYTES = 4 * 1024 * 1024
"""Shorter copies use one thread: starting another takes 20 us, as long as copying 400 KiB."""
_MOST_THREADS = 4  # more are no faster: memory bandwidth is the limit


def copy(target: Bytes, source: Bytes) -> None:
    """Copy bytes to a target that does not overlap them."""
    size = target.nbytes
    library = native_library.library() if size >= WIDE_BYTES else None
    if library is None:
        np.copyto(target, source)
        return
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    library.softnpu_copy(target.ctypes.data, source.ctypes.data, size, threads)
