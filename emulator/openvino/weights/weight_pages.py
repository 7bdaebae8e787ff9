"""Release pages of large weights while OpenVINO converts them, so that they are not in memory twice.

OpenVINO touches all of them first, then converts them in their order: those behind it are released. A page
that is released before it is read costs a page fault, so all are released only where another order, or a
larger converted form, takes more memory than that.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.interface.records import PAGE

LARGE: Final = 64 << 20
"""Bytes of weights from which pages are released."""
_PARTS: Final = 64
_BEHIND: Final = 4
"""Parts that stay behind the converted bytes: of a matrix, all memory is used before all is converted."""
_AHEAD: Final = 8
"""Parts at the end that are released at the beginning, to make room for these.

The thread may also wait for a core.
"""
_MOST: Final = 80
_MOST_IN_MEMORY: Final = 60
"""Parts of memory from which on all pages are released.

Memory files have huge pages, mostly: OpenVINO converts them faster than this thread follows, and releasing
them costs little.
"""
_INTERVAL_S: Final = 0.005


class Resident(NamedTuple):
    """Bytes in memory of this process; `shared`: those of them that belong to files."""

    total: int
    shared: int

    @property
    def private(self) -> int:
        """Those that belong to no file."""
        return self.total - self.shared


def resident() -> Resident:
    """Return the memory of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        _, total, shared, *_ = file.read().split()
    return Resident(int(total) * mmap.PAGESIZE, int(shared) * mmap.PAGESIZE)


@contextmanager
def releasing(space: WeightSpace, look: Callable[[], Resident] = resident) -> Iterator[None]:
    """Release pages of large weights as they are converted in the block, and all at its end.

    Pages used in place are faulted in again from the file.
    """
    size = space.layout.size
    if size < LARGE:
        yield
        return
    space.release_pages()  # those touched by the digest check
    before = look()
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(space, before, look, done), name="weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        space.release_pages()


def _follow(
    space: WeightSpace, before: Resident, look: Callable[[], Resident], done: threading.Event
) -> None:
    size = space.layout.size
    part = size // _PARTS // PAGE * PAGE
    most = part * (_MOST_IN_MEMORY if space.in_memory else _MOST)
    released, pause, has_room = 0, _INTERVAL_S, False
    while not done.wait(pause):
        pause, now = _INTERVAL_S, look()
        converted = now.private - before.private
        if converted >= part and not has_room:
            space.release_pages(size - _AHEAD * part)
            has_room = True
        end = min(size, converted - _BEHIND * part) // PAGE * PAGE
        if now.total - before.total > most:
            start = time.perf_counter()
            space.release_pages()
            pause = max(pause, time.perf_counter() - start)  # OpenVINO needs the cores
        elif end - released >= part:
            space.release_pages(released, end)
            released = end
