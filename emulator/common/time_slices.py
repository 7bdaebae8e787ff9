"""How long a thread runs before the kernel lets others run: a share of the processor is not changed by it."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_SET, _GET = 314, 315  # on x86-64
_RESET_ON_FORK: Final = 1
_call = ctypes.CDLL(None, use_errno=True).syscall


class _Attributes(ctypes.Structure):
    """`struct sched_attr`."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("runtime", "deadline", "period")),
    )


def ask_for(slice_ns: int) -> None:
    """Ask for slices of this length for the calling thread, not for those that it starts.

    A thread that wakes up interrupts one with longer slices at once (Linux 6.12; older kernels ignore it).
    Nothing changes for a real-time thread, for one of raised priority, which those that it starts would lose,
    or if the kernel refuses.
    """
    attributes = _get()
    if attributes is not None and attributes.policy == os.SCHED_OTHER and attributes.nice >= 0:
        attributes.runtime = slice_ns
        attributes.flags |= _RESET_ON_FORK
        _call(_SET, 0, ctypes.byref(attributes), 0)


def of_thread() -> tuple[int, int, int] | None:
    """Return policy, niceness and slice of the calling thread; None if the kernel does not tell."""
    attributes = _get()
    return None if attributes is None else (attributes.policy, attributes.nice, attributes.runtime)


def _get() -> _Attributes | None:
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    failed = os.uname().machine != "x86_64" or _call(_GET, 0, ctypes.byref(attributes), size, 0)
    return None if failed else attributes
