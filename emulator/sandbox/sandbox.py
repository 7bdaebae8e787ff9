"""Sandbox a process before it handles untrusted input: a model may compromise it.

From then on it computes on descriptors that it receives, and can read only its code and libraries. It can
start no program, open no connection, change no file, and reach no other process of any owner. Its memory is
limited.
This cannot be undone. Denied calls fail with an error, so that libraries can do without.

Landlock is for one thread and those that it starts: call `sandbox.enter` before there is another.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from softnpu.emulator.common import private_memory
from softnpu.emulator.sandbox import call_filter, landlock

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 38, 47
_AMBIENT_CLEAR_ALL: Final = 4
_CAPGET_CAPSET: Final = {"x86_64": (125, 126), "aarch64": (90, 91)}
_CAPABILITY_VERSION: Final = 0x20080522
_DAC_READ_SEARCH: Final = 1 << 2
_MOST_CAPABILITIES: Final = 64

_SYSTEM: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/sys", "/proc",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random",
)  # fmt: skip
"""Read by libraries. Of other processes /proc shows a process behind Landlock what everybody may see."""

_libc = ctypes.CDLL(None, use_errno=True)


class Policy(NamedTuple):
    """The remaining rights of a process.

    `readable`: files, or directories with all beneath. `opens_files`: it opens memory files by name to write
    them, and no others where the kernel has Landlock. `dumpable`: a debugger of its user can look at it.
    `memory`: bytes of private memory more than it has; 0: as many as the machine has.
    """

    readable: tuple[str, ...] = ()
    opens_files: bool = False
    dumpable: bool = True
    memory: int = 0


def enter(policy: Policy) -> tuple[str, ...]:
    """Sandbox this process. Returns the protections that this machine lacks."""
    missing = []
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    try:
        if (others := threads() - 1) > 0:
            raise OSError(0, f"it would not hold for {others} other threads")
        landlock.restrict(_paths(policy))
    except OSError as error:
        missing.append(f"landlock ({error.strerror})")
    _drop_capabilities(0 if missing else _DAC_READ_SEARCH)
    private_memory.limit(policy.memory)
    if not policy.dumpable:
        hide()
    try:
        if not call_filter.is_known():
            raise OSError(0, f"no filter for {os.uname().machine}")
        call_filter.install(opens_files=policy.opens_files)
    except OSError as error:
        missing.append(f"seccomp ({error.strerror})")
    return tuple(missing)


def hide() -> None:
    """Hide this process from its user's debuggers."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def _paths(policy: Policy) -> Iterator[tuple[str, int]]:
    for path in (*_SYSTEM, *_own_code(), *policy.readable):
        yield path, landlock.READ
    yield "/dev/null", landlock.WRITE


def _own_code() -> Iterator[str]:
    """Yield the paths of Python, its packages and their libraries."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from filter(os.path.isabs, sys.path)
    yield from filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for name, module in list(sys.modules.items()):
        if name.count(".") <= 1:  # an editable package may lie anywhere, and its parts elsewhere
            yield from (str(path) for path in getattr(module, "__path__", ()))


def _drop_capabilities(kept: int) -> None:
    """Drop all rights of root besides owning files.

    Where Landlock says what can be read, root reads that also in a home that is closed to it as a user.
    """
    for number in range(_MOST_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # refused to who has none anyway
    _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    if os.uname().machine not in _CAPGET_CAPSET:
        return
    get, set_ = _CAPGET_CAPSET[os.uname().machine]
    header, data = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _checked(_libc.syscall(get, header, data), "capget")
    _, permitted, *_ = struct.unpack("=6I", data.raw)
    kept &= 0 if os.geteuid() else permitted  # root in a container may have none
    _checked(_libc.syscall(set_, header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)), "capset")


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
