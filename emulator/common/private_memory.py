"""Private memory of this process, and its limit.

Counted is what it can write and shares with nobody (RLIMIT_DATA): heap, stacks of threads, copies. Memory of
clients, weights in files and the pages of libraries do not count. An allocation beyond the limit fails, and
the process goes on.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

_PAGE = os.sysconf("SC_PAGESIZE")
_DATA = 5  # of /proc/self/statm: pages of data and stacks


def usable() -> int:
    """Bytes of memory that the machine has, or this control group may use."""
    total = _PAGE * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
    return total


def open_counts() -> int:
    """Return a descriptor for `used`."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def used(counts: int) -> int:
    """Bytes of private memory of the process that has opened `counts`."""
    return int(os.pread(counts, 256, 0).split()[_DATA]) * _PAGE


def limit(more: int = 0) -> None:
    """Permanently limit this process to `more` further bytes; 0: as many as the machine has."""
    counts = open_counts()
    try:
        most = used(counts) + (more or usable())
    finally:
        os.close(counts)
    before = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if before != resource.RLIM_INFINITY:
        most = min(most, before)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
