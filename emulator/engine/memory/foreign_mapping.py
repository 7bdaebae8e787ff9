"""A mapped segment of foreign memory, guarded against truncation."""

from __future__ import annotations

import ctypes
import os
import weakref

from softnpu.emulator.common import address_range
from softnpu.emulator.common.cut_guard import guard
from softnpu.emulator.engine.memory.foreign import ForeignFile
from softnpu.emulator.engine.memory.mappings import Mapping
from softnpu.emulator.interface.shared import SharedMapping


class ForeignMapping(Mapping):
    """A segment of foreign memory in this process."""

    __slots__ = ()

    def __init__(self, fd: int, size: int, start: int, expected: int, *, read_only: bool = False) -> None:
        try:
            guarding = guard()
            status = os.fstat(fd)
            map_pages = address_range.map_pages_for_reading if read_only else address_range.map_pages
            pages = map_pages(fd, size, start)
            slot = guarding.add(ctypes.addressof(pages), size)
            # finalizers run last in, first out: the range is unregistered, then its pages are unmapped
            weakref.finalize(pages, guarding.remove, slot).atexit = False
            shared = SharedMapping.of_pages(memoryview(pages).cast("B"))
            super().__init__((status.st_dev, status.st_ino), shared, start)
            self.foreign = ForeignFile(fd, expected, pages, slot)
            self.read_only = read_only
        finally:
            os.close(fd)
