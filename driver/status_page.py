"""The daemon's status page as a session uses it: the running trace, and the word of the session's life."""

from __future__ import annotations

import ctypes
import os
from typing import TypeAlias, cast

from softnpu.emulator.common.address_range import map_for_reading
from softnpu.emulator.interface import records

Pages: TypeAlias = "ctypes.Array[ctypes.c_ubyte]"


def mapped(fd: int) -> StatusPage | None:
    """Map the page, and close its descriptor. None if it is none: this session is not traced then.

    Raises `OSError` without memory for that.
    """
    try:
        size = os.fstat(fd).st_size
        return StatusPage(map_for_reading(fd, size)) if size >= records.STATUS_HEADER.size else None
    finally:
        os.close(fd)


class StatusPage:
    """The page, mapped as long as this lives or a word of it does."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    @property
    def trace(self) -> memoryview:
        """The word with the number of the running trace."""
        return self._page[records.STATUS_TRACE : records.STATUS_TRACE + 8].cast("Q")

    def life_of(self, session: int) -> int:
        """Address of the word that the supervisor holds while this session lives; 0: there is none."""
        count, at = self._page[records.STATUS_LIVES : records.STATUS_LIVES + 8].cast("I")
        if not count:
            return 0  # an older daemon, or one whose kernel has no such words
        at += session % count * records.LIFE_SIZE
        inside = at % records.LIFE_SIZE == 0 and at + records.LIFE_SIZE <= self._page.nbytes
        return ctypes.addressof(cast("Pages", self._page.obj)) + at if inside else 0
