"""Counts the system calls of processes as `perf stat` does, without slowing them: root only.

A counter of the kernel's tracepoint `raw_syscalls:sys_enter` for each thread, and one more for each call that
has a name here. Threads that begin later are counted too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

_EVENT: Final = "events/raw_syscalls/sys_enter/id"
_PLACES: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_TRACEPOINT, _INHERIT, _CLOSE_ON_EXEC = 2, 1 << 1, 8
_SET_FILTER: Final = 0x40082406  # PERF_EVENT_IOC_SET_FILTER
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQQQ")  # the first version of perf_event_attr
_OPEN: Final = 298
_libc = ctypes.CDLL(None, use_errno=True)
NAMES: Final = {
    0: "read", 1: "write", 7: "poll", 9: "mmap", 11: "munmap", 24: "sched_yield", 28: "madvise",
    35: "nanosleep", 44: "sendto", 46: "sendmsg", 47: "recvmsg", 72: "fcntl", 202: "futex",
    203: "sched_setaffinity", 228: "clock_gettime", 232: "epoll_wait",
}  # fmt: skip
"""Calls of x86-64 that clients, engines and supervisors make while models run."""
OTHERS: Final = "others"


def event() -> int:
    """Return the number of the tracepoint. Raise `OSError` where a kernel or user has none."""
    for place in _PLACES:
        if (place / _EVENT).exists() and platform.machine() == "x86_64":
            return int((place / _EVENT).read_text())
    raise FileNotFoundError(2, "no tracepoints for this user")


def is_available() -> bool:
    """Return whether this user may count."""
    try:
        os.close(_open(event(), 0))
    except OSError:
        return False
    return True


@contextmanager
def counted(pids: Sequence[int]) -> Iterator[dict[int, dict[str, int]]]:
    """Yield a dictionary that has the calls by pid and name after the block. Raise `OSError`."""
    number = event()
    found: dict[int, dict[str, int]] = {}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        counters = {pid: [*_counters(stack, number, pid)] for pid in pids}
        yield found
        for pid, of_pid in counters.items():
            calls = _sums(of_pid)
            calls[OTHERS] -= sum(count for name, count in calls.items() if name != OTHERS)
            found[pid] = {name: count for name, count in calls.items() if count}


def _counters(stack: ExitStack, number: int, pid: int) -> Iterator[tuple[str, int]]:
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        for call, name in {-1: OTHERS, **NAMES}.items():
            fd = _open(number, thread)
            stack.callback(os.close, fd)
            if call >= 0:
                fcntl.ioctl(fd, _SET_FILTER, b"id==%d\0" % call)
            yield name, fd


def _open(number: int, thread: int) -> int:
    attributes = _ATTRIBUTES.pack(_TRACEPOINT, 64, number, 0, 0, 0, _INHERIT, 0, 0)
    fd = int(_libc.syscall(_OPEN, attributes, thread, -1, -1, _CLOSE_ON_EXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def _sums(counters: Sequence[tuple[str, int]]) -> Counter[str]:
    """Return the counts by name; those of `OTHERS` are of all calls."""
    sums: Counter[str] = Counter()
    for name, fd in counters:
        sums[name] += int.from_bytes(os.read(fd, 8), "little")
    return sums
