"""A range of a mapped segment, and views of it: bytes, and arrays of numpy, which few clients need."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DEVICE_BASE = 0x8000_0000


class Block:
    """A range of a mapped segment. Handles, views, lists and submissions in flight keep it alive."""

    __slots__ = ("__weakref__", "handle", "mapping", "offset", "read_only", "segment", "size")

    def __init__(
        self,
        handle: int,
        mapping: SharedMapping,
        segment: int,
        offset: int,
        size: int,
        *,
        read_only: bool = False,
    ) -> None:
        self.handle = handle
        self.mapping = mapping
        self.segment = segment
        self.offset = offset
        self.size = size
        self.read_only = read_only

    @property
    def device_address(self) -> int:
        """The address on the device, where segments lie at least 4 GiB apart."""
        return (self.segment << 40) + _DEVICE_BASE + self.offset

    @property
    def address(self) -> int:
        return self.mapping.address + self.offset

    def fence(self, offset: int) -> FenceRecord:
        """Return the fence record at `offset`."""
        return FenceRecord(self.mapping, self.offset + offset)

    def event(self, offset: int) -> EventRecord:
        """Return the event record at `offset`."""
        return EventRecord(self.mapping, self.offset + offset)


class _View:
    """Gives numpy access to a block, and keeps the block alive as long as the array."""

    __slots__ = ("__array_interface__", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.__array_interface__ = {
            "data": (block.address, block.read_only),
            "shape": (block.size,),
            "typestr": "|u1",
            "version": 3,
        }


def view_of(block: Block) -> npt.NDArray[np.uint8]:
    """Return all bytes of a block, without a copy. The block lives at least as long as the array."""
    import numpy as np  # 9 MiB of a process that only moves bytes

    return np.asarray(_View(block))


def bytes_of(block: Block) -> memoryview:
    """Return all bytes of a block, without a copy. The block lives at least as long as the memoryview."""
    array = (ctypes.c_char * block.size).from_address(block.address)
    array.block = block  # type: ignore[attr-defined]
    view = memoryview(array).cast("B")
    return view.toreadonly() if block.read_only else view
