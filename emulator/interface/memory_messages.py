"""Requests for memory: allocations, imports of files, and their end."""

from __future__ import annotations

from softnpu.emulator.interface.handles import Handle
from softnpu.emulator.interface.message import Message


class MemAlloc(Message, frozen=True, kw_only=True, tag="mem_alloc"):
    """Allocate `size` bytes. `kind`: a `MemoryKind`. Answer: `MemAllocated`.

    `exportable` memory has a segment of its own, whose descriptor another process may use. So has `sparse`
    memory, which gets pages where it is used, and is charged by page.
    """

    context: Handle
    kind: str
    size: int
    alignment: int = 0
    exportable: bool = False
    sparse: bool = False


class MemImport(Message, frozen=True, kw_only=True, tag="mem_import"):
    """Import memory of another process. Descriptor: the segment of an exportable allocation.

    Its size must be sealed. Answer: `MemAllocated`, fresh, with the whole segment as the allocation.
    """

    context: Handle
    kind: str


class MemImportPart(Message, frozen=True, kw_only=True, tag="mem_import_part"):
    """Import `size` bytes of a memory file at `offset`, whole pages. Descriptor: the file.

    Its size must be sealed. Answer: `MemAllocated`, fresh: the segment is that part of the file. `foreign`:
    the size need not be sealed, nor the part whole pages; the segment has the pages around it.
    `read_only`: so is a file that the device never writes, also one on a local disk, open for reading only.
    """

    context: Handle
    kind: str
    offset: int
    size: int
    foreign: bool = False
    read_only: bool = False


class MemFree(Message, frozen=True, kw_only=True, tag="mem_free"):
    """Free any number of allocations. Answer: `Ok`."""

    memory: tuple[Handle, ...]
