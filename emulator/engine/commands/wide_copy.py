"""Large copies by several threads, which stay: the kernel starts half of all new ones on the busy core."""

from __future__ import annotations

import os
from collections import deque
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from softnpu.emulator.common.arrays import Bytes

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

WIDE_BYTES = 4 * 1024 * 1024
"""Shorter copies use one thread: waking another can take as long as copying 1 MiB."""
_CHUNK_BYTES = 2 * 1024 * 1024  # a thread that loses its core delays one chunk, not its whole share
_MOST_THREADS = 4  # more are no faster: memory bandwidth is the limit

_Chunks = deque[tuple[Bytes, Bytes]]


def copy(target: Bytes, source: Bytes) -> None:
    """Copy bytes to a target that does not overlap them. When it ends or raises, no thread writes."""
    starts = range(0, target.nbytes, _CHUNK_BYTES)
    chunks = deque((target[at : at + _CHUNK_BYTES], source[at : at + _CHUNK_BYTES]) for at in starts)
    helpers: list[Future[None]] = []
    try:
        try:
            for _ in range(min(_MOST_THREADS, len(starts), len(os.sched_getaffinity(0))) - 1):
                helpers.append(_helpers().submit(_copy_chunks, chunks))
        except (RuntimeError, MemoryError):  # no more threads: the existing ones do the work
            _helpers.cache_clear()  # it would keep what no thread of it has done
        _copy_chunks(chunks)
    finally:
        chunks.clear()
        failures = [helper.exception() for helper in helpers if not helper.cancel()]
    for failure in filter(None, failures):
        raise failure


def _copy_chunks(chunks: _Chunks) -> None:
    while chunks:
        try:
            target, source = chunks.popleft()
        except IndexError:
            return  # another thread was faster
        np.copyto(target, source)


@cache
def _helpers() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # 3 ms, which few engines need

    return ThreadPoolExecutor(_MOST_THREADS - 1, "copy")
