"""Release pages of large weights while OpenVINO converts them, so that they are not in memory twice.

Each release walks all pages, and costs OpenVINO a page fault for those it was about to read again. So it
happens after each eighth of the weights, and more often only when the process approaches its size with all
weights converted.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from softnpu.emulator.blob.weight_space import WeightSpace

LARGE: Final = 64 << 20
"""Bytes of weights from which pages are released."""
_PARTS: Final = 8
_MARGIN: Final = 4
"""Once less than one part in so many of the weights remains, pages are released at every check.

A thread may wait for a core between two checks.
"""
_INTERVAL_S: Final = 0.005


class Resident(NamedTuple):
    """Bytes in memory of this process; `shared`: those of them that belong to files."""

    total: int
    shared: int


def resident() -> Resident:
    """Return the memory of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        _, total, shared, *_ = file.read().split()
    return Resident(int(total) * mmap.PAGESIZE, int(shared) * mmap.PAGESIZE)


@contextmanager
def releasing(space: WeightSpace, look: Callable[[], Resident] = resident) -> Iterator[None]:
    """Release pages of large weights as memory grows in the block, and at its end.

    Pages used in place are faulted in again from the file.
    """
    size = space.layout.size
    if size < LARGE:
        yield
        return
    space.release_pages()  # those touched by the digest check
    total, shared = look()
    limit = total + size - size // _MARGIN
    done = threading.Event()

    def release() -> None:
        pause, before = _INTERVAL_S, shared
        while not done.wait(pause):
            pause, now = _INTERVAL_S, look()
            if now.total > limit or now.shared - before > size // _PARTS:
                start = time.perf_counter()
                space.release_pages()
                before = look().shared
                pause = max(pause, time.perf_counter() - start)  # OpenVINO needs the cores

    thread = threading.Thread(target=release, name="weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        space.release_pages()
