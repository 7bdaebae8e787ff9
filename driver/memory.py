"""Device memory: allocations that are host-visible, and numpy views of them.

The daemon places allocations inside segments (sealed memory files); this process maps a segment once.
"""

from __future__ import annotations

import bisect
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from softnpu.driver.errors import error
from softnpu.driver.handle import Handle
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.handles import describe
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection


_DEVICE_BASE = 0x8000_0000


class Block:
    """The memory itself. Lives as long as anything refers to it: handle, view, list, submission in flight."""

    __slots__ = ("__weakref__", "handle", "mapping", "offset", "segment", "size")

    def __init__(self, handle: int, mapping: SharedMapping, segment: int, offset: int, size: int) -> None:
        self.handle = handle
        self.mapping = mapping
        self.segment = segment
        self.offset = offset
        self.size = size

    @property
    def device_address(self) -> int:
        """Where the device would see it: segments lie 4 GiB and more apart in its address space."""
        return (self.segment << 40) + _DEVICE_BASE + self.offset

    @property
    def address(self) -> int:
        return self.mapping.address + self.offset

    def fence(self, offset: int) -> FenceRecord:
        """The record of a fence at `offset`."""
        return FenceRecord(self.mapping, self.offset + offset)

    def event(self, offset: int) -> EventRecord:
        """The record of an event at `offset`."""
        return EventRecord(self.mapping, self.offset + offset)


class _View:
    """Lets numpy look at a block, and keeps the block alive as long as the array lives."""

    __slots__ = ("__array_interface__", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.__array_interface__ = {
            "data": (block.address, False),
            "shape": (block.size,),
            "typestr": "|u1",
            "version": 3,
        }


def view_of(block: Block) -> npt.NDArray[np.uint8]:
    """All bytes of a block, without a copy. The block lives at least as long as the array."""
    return np.asarray(_View(block))


class Allocation(Handle):
    """Memory from `alloc_host`, `alloc_device` or `alloc_shared`; `size` bytes at `address`.

    `destroy` (or the end of the last reference) frees it; memory that a view or a submission in flight
    still uses is given back when they end.
    """

    def __init__(
        self, context: Handle, block: Block, kind: str, identity: int, connection: Connection
    ) -> None:
        self._held = [block]
        self._owns(context, connection, self._held.clear)
        self.kind = kind
        self.id = identity
        self.size = block.size
        self.address = block.address

    @property
    def block(self) -> Block:
        """The memory itself, for commands."""
        self.check("zeMemGetAllocProperties")
        return self._held[0]

    def view(
        self, dtype: npt.DTypeLike = np.uint8, shape: Sequence[int] | None = None, offset: int = 0
    ) -> npt.NDArray[Any]:
        """The memory as an array, without a copy: `shape` elements of `dtype` from byte `offset` on.

        Without a shape: as many elements as fit. Raises `ZeError` with ERROR_INVALID_SIZE when the range
        does not lie inside the allocation.
        """
        kind = np.dtype(dtype)
        block = self.block
        left = block.size - offset
        count = left // kind.itemsize if shape is None else math.prod(shape)
        if offset < 0 or count < 0 or count * kind.itemsize > left:
            raise error(
                "Allocation.view",
                ZeResult.ERROR_INVALID_SIZE,
                describe(block.handle),
                found=f"{count} elements of {kind} at byte {offset}",
                expected=f"a range inside its {block.size} bytes",
            )
        raw = view_of(block)[offset : offset + count * kind.itemsize]
        return raw.view(kind).reshape(count if shape is None else tuple(shape))


class MemoryPool:
    """All memory of one context in this process: mapped segments, live blocks, what is to be freed."""

    def __init__(self, connection: Connection, context: int) -> None:
        self._connection = connection
        self._context = context
        self._lock = threading.RLock()
        self._closed = False
        self._segments: dict[int, tuple[SharedMapping, int]] = {}
        self._addresses: list[int] = []
        self._blocks: dict[int, tuple[int, weakref.ref[Block]]] = {}
        # finalizers run anywhere, even inside a request: they only note what is to be freed
        self._garbage: deque[tuple[int, int, int]] = deque()
        self._freed: deque[tuple[int, int, int]] = deque()
        self._exported: dict[int, int] = {}
        # answers to requests whose caller was interrupted: what they place is in the daemon's books
        self._late: deque[tuple[msg.MemAllocated, list[int], deque[tuple[int, int, int]]]] = deque()

    def allocate(
        self, call: str, kind: str, size: int, alignment: int = 0, exportable: bool = False
    ) -> Block:
        """Asks the daemon for memory, maps it and reserves its pages."""
        # answers that place memory are adopted in the order in which the daemon gave them
        with self._connection.section(), self._lock:
            self.flush()
            request = msg.MemAlloc(
                context=self._context, kind=kind, size=size, alignment=alignment, exportable=exportable
            )
            answer, fds = self._connection.request(call, request, msg.MemAllocated, late=self._allocated_late)
            if exportable:
                self._exported[answer.segment] = os.dup(fds[0])
            return self._adopt(call, answer, fds, size, self._garbage)

    def import_segment(self, call: str, fd: int, kind: str) -> Block:
        """Memory that another process has exported; the descriptor stays the caller's."""
        with self._connection.section(), self._lock:
            self.flush()
            request = msg.MemImport(context=self._context, kind=kind)
            answer, fds = self._connection.request(
                call, request, msg.MemAllocated, [fd], late=self._allocated_late
            )
            return self._adopt(call, answer, fds, answer.segment_size, self._garbage)

    def export_segment(self, call: str, block: Block) -> int:
        """A descriptor of the block's segment, the caller's. Raises INVALID_ENUMERATION if not exportable."""
        fd = self._exported.get(block.segment)
        if fd is None:
            raise error(
                call,
                ZeResult.ERROR_INVALID_ENUMERATION,
                describe(block.handle),
                found="allocated without the export flag",
                expected="an exportable allocation",
            )
        return os.dup(fd)

    def create_queue(self, call: str, request: msg.QueueCreate, size: int) -> tuple[int, Block]:
        """Asks for a queue: its handle, and its ring of `size` bytes, which the daemon frees with it."""
        with self._connection.section(), self._lock:
            self.flush()
            answer, fds = self._connection.request(call, request, msg.QueueCreated, late=self._queue_late)
            try:
                return answer.queue, self._adopt(call, answer.ring, fds, size, self._freed)
            except BaseException:
                self._connection.post(msg.QueueDestroy(queue=answer.queue))
                raise

    def _allocated_late(self, answer: msg.Answer, fds: list[int]) -> None:
        assert isinstance(answer, msg.MemAllocated)
        self._late.append((answer, fds, self._garbage))

    def _queue_late(self, answer: msg.Answer, fds: list[int]) -> None:
        assert isinstance(answer, msg.QueueCreated)
        self._late.append((answer.ring, fds, self._freed))
        self._connection.defer(lambda: self._connection.post(msg.QueueDestroy(queue=answer.queue)))

    def _adopt(
        self,
        call: str,
        answer: msg.MemAllocated,
        fds: list[int],
        size: int,
        end: deque[tuple[int, int, int]],
    ) -> Block:
        while self._late:
            # the daemon placed these before: a later answer may lie in their segment
            placed, its_fds, its_end = self._late.popleft()
            self._place(call, placed, its_fds, 1, its_end)
        return self._place(call, answer, fds, size, end)

    def _place(
        self,
        call: str,
        answer: msg.MemAllocated,
        fds: list[int],
        size: int,
        end: deque[tuple[int, int, int]],
    ) -> Block:
        mapping, count = self._map(call, answer, fds)
        self._segments[answer.segment] = (mapping, count + 1)
        block = Block(answer.memory, mapping, answer.segment, answer.offset, size)
        bisect.insort(self._addresses, block.address)
        self._blocks[block.address] = (block.handle, weakref.ref(block))
        note = (block.handle, answer.segment, block.address)
        weakref.finalize(block, self._collect, end, note).atexit = False
        return block

    def _collect(self, end: deque[tuple[int, int, int]], note: tuple[int, int, int]) -> None:
        end.append(note)
        self._connection.defer(self.flush)

    def flush(self) -> None:
        """Gives memory back that nothing refers to any more."""
        with self._connection.section(), self._lock:
            if self._closed:
                return
            while self._freed:
                self._forget(*self._freed.popleft())
            garbage = []
            while self._garbage:
                garbage.append(self._garbage.popleft())
                self._forget(*garbage[-1])
            if not garbage or self._connection.is_lost():
                return  # with the daemon everything that it had is gone
            for start in range(0, len(garbage), 1024):
                handles = tuple(entry[0] for entry in garbage[start : start + 1024])
                self._connection.request("zeMemFree", msg.MemFree(memory=handles), msg.Ok)

    @property
    def closed(self) -> bool:
        """Whether the context was destroyed."""
        return self._closed

    def close(self) -> None:
        """The daemon has given everything back: forgets what was mapped here."""
        with self._lock:
            self._closed = True
            self._garbage.clear()
            self._freed.clear()
            while self._late:
                for fd in self._late.popleft()[1]:
                    os.close(fd)
            self._segments.clear()
            while self._exported:
                os.close(self._exported.popitem()[1])
            self._addresses.clear()
            self._blocks.clear()

    def find(
        self, call: str, place: object, unknown: ZeResult = ZeResult.ERROR_INVALID_ARGUMENT
    ) -> tuple[Block, int]:
        """The block and offset of an allocation, a view of one, or an address inside one.

        Raises `ZeError`: INVALID_NULL_POINTER for None and 0, `unknown` for memory of somebody else.
        """
        if isinstance(place, Allocation):
            place.check(call)
            return self._own(call, place.block, unknown), 0
        if isinstance(place, np.ndarray):
            if not place.flags.c_contiguous:
                raise error(
                    call,
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    "array",
                    found="not contiguous",
                    expected="a C-contiguous view",
                )
            address = place.ctypes.data
        elif isinstance(place, int):
            address = place
        elif place is None:
            address = 0
        else:
            raise error(
                call,
                ZeResult.ERROR_INVALID_ARGUMENT,
                "memory",
                found=f"a {type(place).__name__}",
                expected="an Allocation, a numpy view of one, or an address",
            )
        return self._find_address(call, address, unknown)

    def _find_address(self, call: str, address: int, unknown: ZeResult) -> tuple[Block, int]:
        if address == 0:
            raise error(
                call,
                ZeResult.ERROR_INVALID_NULL_POINTER,
                "memory",
                found="null pointer",
                expected="an address",
            )
        with self._lock:
            index = bisect.bisect_right(self._addresses, address) - 1
            entry = self._blocks.get(self._addresses[index]) if index >= 0 else None
            block = entry[1]() if entry is not None else None
        if block is None or address - block.address >= block.size:
            raise error(
                call,
                unknown,
                f"address {address:#x}",
                found="not in memory of this context",
                expected="memory from alloc_host, alloc_device or alloc_shared of this context",
                hint="copy the data into such memory first",
            )
        return block, address - block.address

    def _own(self, call: str, block: Block, unknown: ZeResult) -> Block:
        """The block, if it belongs to this context."""
        self._find_address(call, block.address, unknown)
        return block

    def _map(self, call: str, answer: msg.MemAllocated, fds: list[int]) -> tuple[SharedMapping, int]:
        if not answer.fresh:
            known = self._segments.get(answer.segment)
            if known is None:
                raise self._connection.give_up(call, f"segment {answer.segment} was lost by an interruption")
            return known
        (fd,) = fds
        try:
            if failpoints.active is not None:
                failpoints.hit("client.map")
            os.posix_fallocate(fd, 0, answer.segment_size)
            return SharedMapping(fd, answer.segment_size), 0
        except OSError as failure:
            self._connection.post(msg.MemFree(memory=(answer.memory,)))
            raise error(
                call,
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                f"segment of {answer.segment_size} bytes",
                found=failure.strerror or str(failure),
                expected="memory of the machine to back it",
            ) from failure
        finally:
            os.close(fd)

    def _forget(self, handle: int, segment: int, at: int) -> None:
        mapping, count = self._segments[segment]
        if count == 1:
            del self._segments[segment]
            if segment in self._exported:
                os.close(self._exported.pop(segment))
        else:
            self._segments[segment] = (mapping, count - 1)
        index = bisect.bisect_left(self._addresses, at)
        del self._addresses[index]
        # the daemon may have placed another block there already (a ring is freed with its queue)
        entry = self._blocks.get(at)
        if entry is not None and entry[0] == handle:
            del self._blocks[at]
