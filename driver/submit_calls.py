"""What every submission does with its ring and its fence, in C++: `libsoftnpu_submit.so`, if built.

Without it the driver does the same in Python (`DriverRing`, `FenceRecord`), with four times the work.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from softnpu.emulator.common import native_files

log = logging.getLogger(__name__)

VERSION: Final = 1
"""Version of the functions in `native/submit`: a library of another version is not used."""


class SubmitCalls(NamedTuple):
    """Functions on addresses, which the caller keeps mapped."""

    submit: Callable[[int, int, int, int, int, int, int, int], bool]
    """Ring, slots, then as `DriverRing.submit`."""
    poll: Callable[[int, int, int, int, int], int]
    """Fence, ticket, ring, sequence, nanoseconds: whether the fence has the ticket, or so many have ended.

    2: not yet, and polling is in vain: the device runs submissions of others first, or needs this processor.
    """
    sleep: Callable[[int, int, int], object]
    """Fence, then as `FenceRecord.sleep`."""


def load() -> SubmitCalls | None:
    """Return the functions; None if there is no library of this version."""
    path = native_files.submit()
    if not path.exists():
        log.info("no %s: the driver submits and waits in Python, slower", path)
        return None
    try:
        library = ctypes.PyDLL(str(path))
        version = int(library.softnpu_submit_version())
        function = library.softnpu_submit_function
    except (OSError, AttributeError) as error:
        log.warning("%s cannot be used: %s; install softnpu again", path, error)
        return None
    if version != VERSION:
        log.warning("%s has version %d; expected %d: install softnpu again", path, version, VERSION)
        return None
    function.restype = ctypes.py_object
    return SubmitCalls(*map(function, range(len(SubmitCalls._fields))))


CALLS: Final = load()
