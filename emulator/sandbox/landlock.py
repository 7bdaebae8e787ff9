"""Landlock: restrict this process and its children to a list of files.

The kernel then also denies tracing of outside processes and, if new enough, TCP, abstract sockets and signals
to others. Open descriptors and memory files stay usable.

Rights and structures are those of the kernel's `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_RENAME, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES: Final = _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 | 1 << 15  # execute, control a device
READ: Final = _READ_FILE | _READ_DIR
WRITE: Final = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_FILE | _RENAME | _TRUNCATE
_FILE_RIGHTS: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""From which version on there are how many rights of files."""
_TCP: Final = 0b11  # bind, connect: from version 4 on
_SCOPES: Final = 0b11  # abstract sockets, signals: from version 6 on

_call = ctypes.CDLL(None, use_errno=True).syscall
_call.restype = ctypes.c_long


def version() -> int:
    """Which Landlock the kernel has; 0 for none."""
    return max(0, int(_call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(paths: Iterable[tuple[str, int]]) -> None:
    """Restrict this thread to these rights beneath these paths; those that do not exist are left out.

    Needs `no_new_privs`. Raises `OSError` if the kernel refuses.
    """
    found = version()
    handled = (1 << max(count for least, count in _FILE_RIGHTS if least <= max(found, 1))) - 1
    rights = struct.pack("=QQQ", handled, _TCP if found >= 4 else 0, _SCOPES if found >= 6 else 0)
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    rules = _checked(_call(_CREATE_RULESET, rights, ctypes.c_size_t(size), 0))
    try:
        for path, allowed in paths:
            _allow(rules, path, allowed & handled)
        _checked(_call(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a file that cannot be opened now cannot be read later either
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        _checked(_call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0))
    finally:
        os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
