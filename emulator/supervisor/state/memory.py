"""Device memory of one context: segments and the allocations in them.

A segment is a sealed memory file. Small allocations share arena segments (a descriptor and a mapping
for each would be wasted on 64-byte fences); large ones get a segment of their own. A segment lives as
long as an allocation lies in it, on both sides, so neither needs a message to unmap.
"""

from __future__ import annotations

import os

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.common.range_allocator import RangeAllocator
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.supervisor.held_descriptors import NO_DESCRIPTOR, HeldDescriptor, check_left
from softnpu.emulator.supervisor.state.open_arenas import OpenArenas

DEFAULT_ALIGNMENT = 64
KINDS = ("host", "device", "shared", "control")

_ARENA_FIRST = 64 * 1024
_ARENA_LAST = 2 * 1024 * 1024
_ARENA_ITEM = 256 * 1024
_CHECKED_FROM = 16 * 1024 * 1024
_LARGE = 16 * 1024 * 1024
_HEADROOM = 256 * 1024 * 1024
_BLOCK = 512  # bytes of `st_blocks`, on every file system


class Segment(msgspec.Struct):
    """A memory file from `start` on. The descriptor is ours; what waits to be sent holds it as well.

    `foreign`: the bytes that the file has to have, if others can cut it; else 0. `read_only`: the device may
    not write it.
    """

    number: int
    fd: int
    size: int
    ranges: RangeAllocator
    control: bool
    start: int = 0
    foreign: int = 0
    read_only: bool = False
    _held: HeldDescriptor = NO_DESCRIPTOR

    def __post_init__(self) -> None:
        self._held = HeldDescriptor(self.fd)
        self.fd = self._held

    def close(self) -> None:
        if self._held.release():
            close_untrusted((self._held,))  # who has the last one gives its pages back, which takes a while


class Allocation(msgspec.Struct):
    """`size` bytes as asked for, `reserved` bytes as placed, at `offset` of `segment`.

    `counted` is what it counts for: its size, or the pages in use of a `sparse` one. `is_ring`: of a queue
    that was not destroyed.
    """

    segment: Segment
    offset: int
    size: int
    reserved: int
    kind: str
    counted: int
    sparse: bool = False
    handle: int = 0
    is_ring: bool = False


class ContextMemory(msgspec.Struct):
    """All segments of one context.

    `unmapping`: large ones that were freed. They are kept until no engine maps them: an engine that had the
    last hold of gigabytes would give them back for a second, in which it serves nobody. `mapped`: an engine
    may have the context. `guarded`: a page behind each allocation stays free.
    """

    segments: dict[int, Segment] = msgspec.field(default_factory=dict)
    sparse: dict[int, Allocation] = msgspec.field(default_factory=dict)
    unmapping: dict[int, Segment] = msgspec.field(default_factory=dict)
    mapped: bool = True
    allocated: int = 0
    guarded: bool = False
    _next: int = 1
    _open: OpenArenas[Segment] = msgspec.field(
        default_factory=lambda: OpenArenas(DEFAULT_ALIGNMENT, _ARENA_LAST)
    )

    @property
    def address_space(self) -> int:
        """Bytes of sparse allocations, used or not."""
        return sum(allocation.size for allocation in self.sparse.values())

    def allocate(
        self, size: int, alignment: int, kind: str, exportable: bool = False, sparse: bool = False
    ) -> tuple[Allocation, bool]:
        """Place `size` bytes; the flag says that the segment is a fresh one.

        Exportable memory has a segment of its own: its descriptor gives access to nothing else. So has sparse
        memory, whose pages are those of the segment, and memory that is aligned to more than a page: the
        client maps it where it wants it.
        """
        alignment = max(alignment, DEFAULT_ALIGNMENT)
        reserved = -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        control, is_large = kind == "control", reserved > _ARENA_ITEM
        if self.guarded and not (control or exportable or sparse):
            # pages of its own, and a free one behind them, which drivers deny the program
            alignment, reserved = max(alignment, PAGE), (-(-size // PAGE) + 1) * PAGE
        if is_large or exportable or sparse or alignment > PAGE:
            segment, fresh = self._add_segment(-(-reserved // PAGE) * PAGE, control), True
            offset = segment.ranges.allocate(segment.size, alignment)
            reserved = segment.size
        else:
            segment, offset, fresh = self._place(reserved, alignment, control)
        assert offset is not None  # the segment was made or chosen for this size
        allocation = Allocation(segment, offset, size, reserved, kind, 0 if sparse else size, sparse)
        if sparse:
            self.sparse[segment.number] = allocation
        self.allocated += allocation.counted
        return allocation, fresh

    def adopt(self, fd: int, size: int, kind: str, start: int = 0) -> Allocation:
        """Return a segment that a client has made, as one allocation; the descriptor stays the caller's."""
        segment = self._keep_segment(os.dup(fd), size, control=False)
        segment.start = start
        segment.ranges.allocate(size, PAGE)
        self.allocated += size
        return Allocation(segment, 0, size, size, kind, size)

    def adopt_foreign(
        self, fd: int, size: int, kind: str, offset: int, *, read_only: bool = False
    ) -> Allocation:
        """`size` bytes from `offset` of a file that others can cut; the descriptor stays the caller's.

        The segment has the whole pages that they lie in.
        """
        start = offset // PAGE * PAGE
        pages = -(-(offset - start + size) // PAGE) * PAGE
        segment = self._keep_segment(os.dup(fd), pages, control=False)
        segment.start, segment.foreign, segment.read_only = start, offset + size, read_only
        segment.ranges.allocate(pages, PAGE)
        self.allocated += size
        return Allocation(segment, offset - start, size, pages, kind, size)

    def free(self, allocation: Allocation) -> bool:
        """Free an allocation; True if its segment is freed with it."""
        segment = allocation.segment
        room = segment.ranges.free(0 if segment.foreign else allocation.offset, allocation.reserved)
        self.sparse.pop(segment.number, None)
        self.allocated -= allocation.counted
        if not segment.ranges.empty:
            self._open.offer(segment, room)
            return False
        self._end(segment.number)
        return True

    def _end(self, number: int) -> None:
        self._open.drop(self.segments[number])
        if self.mapped and self.segments[number].size >= _LARGE:
            self.unmapping[number] = self.segments.pop(number)
        else:
            self.segments.pop(number).close()

    def unmapped(self, *numbers: int) -> None:
        """Close freed segments that no engine maps any longer; harmless when repeated."""
        for number in numbers:
            if number in self.unmapping:
                self.unmapping.pop(number).close()

    def let_go(self) -> None:
        """Note that no engine has the context any longer."""
        self.mapped = False
        self.unmapped(*self.unmapping)

    def count_pages(self) -> int:
        """Count what sparse allocations use now; how many bytes more that is."""
        before = self.allocated
        for allocation in self.sparse.values():
            used = os.fstat(allocation.segment.fd).st_blocks * _BLOCK
            self.allocated += used - allocation.counted
            allocation.counted = used
        return self.allocated - before

    def close_some(self, most: int) -> int:
        """Close up to `most` segments, at the end of the context; return their number.

        Large ones are closed once no engine maps them.
        """
        self.sparse.clear()
        self.allocated = 0
        count = min(most, len(self.segments))
        for _ in range(count):
            self._end(next(reversed(self.segments)))
        return count

    def _place(self, reserved: int, alignment: int, control: bool) -> tuple[Segment, int, bool]:
        placed = self._open.place(reserved, alignment, control)
        if placed is not None:
            return *placed, False
        # arenas grow with what the context holds, so a small context stays small
        wanted = max(_ARENA_FIRST, 2 * reserved, min(self.allocated, _ARENA_LAST))
        segment = self._add_segment(1 << (wanted - 1).bit_length(), control)
        offset = segment.ranges.allocate(reserved, alignment)
        assert offset is not None  # an arena is at least twice its largest item
        self._open.offer(segment, segment.size)
        return segment, offset, True

    def _add_segment(self, size: int, control: bool) -> Segment:
        return self._keep_segment(linux.fixed_memfd("memory", size), size, control)

    def _keep_segment(self, fd: int, size: int, control: bool) -> Segment:
        try:
            check_left(fd)
            segment = Segment(self._next, fd, size, RangeAllocator(size), control)
            self._next += 1
            self.segments[segment.number] = segment  # which owns the descriptor now
        except BaseException:
            os.close(fd)
            raise
        return segment


def check_host_memory(size: int) -> None:
    """Refuse what the machine cannot back with pages: better an error now than the OOM killer."""
    if size < _CHECKED_FROM:
        return
    import psutil  # late: it takes as long as many of the daemon's modules, and few programs need so much

    available = psutil.virtual_memory().available - _HEADROOM
    if size > available:
        raise refuse(
            ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
            "memory allocation",
            found=f"{size} bytes asked for",
            expected=f"at most {max(0, available)} bytes, what this machine has available",
        )


def check_request(kind: str, size: int, alignment: int) -> None:
    """Refuse an allocation that no device can serve, before any effect."""
    if kind not in KINDS:
        raise refuse(
            ZeResult.ERROR_INVALID_ENUMERATION, "memory kind", found=repr(kind), expected=" or ".join(KINDS)
        )
    if size <= 0:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            "memory allocation",
            found=f"size {size}",
            expected="at least 1 byte",
        )
    if alignment < 0 or alignment & (alignment - 1):
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_ALIGNMENT,
            "memory allocation",
            found=f"alignment {alignment}",
            expected="0 or a power of two",
        )
