"""What every submission does with its ring and its fence, in C++: `libsoftnpu_submit.so`, if built.

Without it the driver does the same in Python (`DriverRing`, `FenceRecord`), with four times the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, NamedTuple

from softnpu.emulator.common import native_files

VERSION: Final = 5
"""Version of the functions in `native/submit`: a library of another version is not used."""


class SubmitCalls(NamedTuple):
    """Functions on addresses, which the caller keeps mapped."""

    submit: Callable[[int, int, int, int, int, int, int, int, int, int], bool]
    """Ring, slots, then as `DriverRing.fill`, address of the fence or 0, doorbell.

    Arms the fence, publishes the submission, and rings if the engine sleeps; True if that has failed.
    """
    poll: Callable[[int, int, int, int, int], int]
    """Fence, ticket, ring, sequence, nanoseconds: whether the fence has the ticket, or so many have ended.

    2: not yet, and polling is in vain: the device runs submissions of others first, or needs this processor.
    """
    sleep: Callable[[int, int, int, int, int, int, int, int, int, int], object]
    """Fence, ticket, ring, sequence, nanoseconds, those of a slice, address and value of a count, socket,
    address of a life or 0.

    As `FenceRecord.sleep`. It does not sleep if so many have ended. It returns as well when the count
    changes, or the life has ended and the peer of the socket is gone. Between two slices it looks for all
    that; they are short without a life, and where the kernel watches one word at a time.
    """


def load() -> SubmitCalls | None:
    """Return the functions; None if there is no library of this version."""
    without = "the driver submits and waits in Python, slower"
    name = "softnpu_submit_version"
    library = native_files.loaded(native_files.submit(), name, VERSION, without, ctypes.PyDLL)
    if library is None:
        return None
    function = library.softnpu_submit_function
    function.restype = ctypes.py_object
    return SubmitCalls(*map(function, range(len(SubmitCalls._fields))))


CALLS: Final = load()
