"""Device memory: host-visible allocations, and views of them: arrays of numpy, and plain bytes.

The daemon places allocations in segments (sealed memory files); this process maps each segment once.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from softnpu.driver.address_index import AddressIndex
from softnpu.driver.block import Block, bytes_of, view_of
from softnpu.driver.errors import ZeError, error, invalid_argument, invalid_size, null_pointer
from softnpu.driver.handle import Handle
from softnpu.emulator.common import failpoints, linux, streams
from softnpu.emulator.common.address_range import map_pages
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.handles import describe
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.interface.shared import SharedMapping

if TYPE_CHECKING:
    import numpy.typing as npt

    from softnpu.driver.connection import Connection


class Allocation(Handle):
    """Memory from `alloc_host`, `alloc_device` or `alloc_shared`; `size` bytes at `address`.

    `destroy` (or dropping the last reference) frees it; memory still used by a view or a submission in flight
    is freed when these end.
    """

    def __init__(
        self, context: Handle, block: Block, kind: str, identity: int, connection: Connection
    ) -> None:
        self._blocks = [block]
        self._register(context, connection, self._blocks.clear)
        self.kind = kind
        self.id = identity
        self.size = block.size
        self.address = block.address

    @property
    def handle(self) -> int:
        """Its number in the daemon, as used in error messages."""
        return self._block.handle

    @property
    def _block(self) -> Block:
        self._check("zeMemGetAllocProperties")
        return self._blocks[0]

    def view(
        self, dtype: npt.DTypeLike = "u1", shape: Sequence[int] | None = None, offset: int = 0
    ) -> npt.NDArray[Any]:
        """Return the memory as an array, without a copy: `shape` elements of `dtype` from byte `offset`.

        Without a shape: as many elements as fit.
        Raises `ZeError` with ERROR_INVALID_SIZE when the range exceeds the allocation.
        """
        import numpy as np  # late: `buffer` does without

        kind = np.dtype(dtype)
        block = self._block
        left = block.size - offset
        count = left // kind.itemsize if shape is None else math.prod(shape)
        if offset < 0 or count < 0 or count * kind.itemsize > left:
            raise invalid_size(
                "Allocation.view",
                describe(block.handle),
                found=f"{count} elements of {kind} at byte {offset}",
                expected=f"a range inside its {block.size} bytes",
            )
        raw = view_of(block)[offset : offset + count * kind.itemsize]
        return raw.view(kind).reshape(count if shape is None else tuple(shape))

    def buffer(self) -> memoryview:
        """Return the memory as bytes, without a copy. A program that uses no array needs no numpy."""
        return bytes_of(self._block)


MemoryRef: TypeAlias = "Allocation | npt.NDArray[Any] | int | None"
"""An allocation, a contiguous view of one, or an address inside one; None is the null pointer."""


class MemoryPool:
    """All memory of one context in this process: mapped segments, live blocks, pending frees."""

    def __init__(self, connection: Connection, context: int) -> None:
        self.sparse_sizes: set[int] = set()
        """Sizes of allocations for arguments without a largest shape."""
        self._connection = connection
        self._context = context
        self._lock = threading.RLock()
        self._closed = False
        self._segments: dict[int, tuple[SharedMapping, int]] = {}
        self._addresses = AddressIndex()
        self._blocks: dict[int, tuple[int, weakref.ref[Block]]] = {}
        # finalizers run anywhere, even inside a request: they only queue the free
        self._to_free: deque[tuple[int, int, int]] = deque()
        self._freed_by_daemon: deque[tuple[int, int, int]] = deque()
        self._exported: dict[int, int] = {}
        # answers to interrupted requests: the daemon has allocated this memory
        self._late: deque[tuple[msg.MemAllocated, list[int], deque[tuple[int, int, int]]]] = deque()

    def allocate(
        self, call: str, kind: str, size: int, alignment: int = 0, exportable: bool = False
    ) -> Block:
        """Request memory from the daemon, map it and reserve its pages."""
        # answers with memory are mapped in the daemon's order
        with self._connection.deferred_section(), self._lock:
            self.flush()
            request = msg.MemAlloc(
                context=self._context,
                kind=kind,
                size=size,
                alignment=alignment,
                exportable=exportable,
                sparse=size in self.sparse_sizes and not exportable,
            )
            answer, fds = self._connection.request(
                call, request, msg.MemAllocated, on_late_answer=self._on_late_allocation
            )
            if exportable:
                self._exported[answer.segment] = streams.duplicate(fds[0])
            return self._map_answer(call, answer, fds, size, self._to_free, alignment)

    def import_segment(self, call: str, fd: int, kind: str) -> Block:
        """Import memory exported by another process; the caller keeps the descriptor."""
        with self._connection.deferred_section(), self._lock:
            self.flush()
            request = msg.MemImport(context=self._context, kind=kind)
            answer, fds = self._connection.request(
                call, request, msg.MemAllocated, [fd], on_late_answer=self._on_late_allocation
            )
            return self._map_answer(call, answer, fds, answer.segment_size, self._to_free)

    def import_part(
        self,
        call: str,
        fd: int,
        offset: int,
        size: int,
        kind: str = "host",
        *,
        address: int = 0,
        foreign: bool,
        read_only: bool = False,
    ) -> Block:
        """Import `size` bytes from `offset` of a memory file; the caller keeps its descriptor.

        With an `address` they are already mapped there. `foreign`: others can truncate the file. `read_only`:
        so can they, and the device only reads it.
        """
        if address:
            self._check_free(call, address, size)
        try:
            if not read_only:
                linux.reserve_pages(fd, offset, size)
        except OSError as failure:
            raise _no_pages(call, size, failure) from failure
        with self._connection.deferred_section(), self._lock:
            self.flush()
            request = msg.MemImportPart(
                context=self._context,
                kind=kind,
                offset=offset,
                size=size,
                foreign=foreign,
                read_only=read_only,
            )
            answer, fds = self._connection.request(
                call, request, msg.MemAllocated, [fd], on_late_answer=self._on_late_import
            )
            for made in fds:
                os.close(made)
            if address:
                mapping = SharedMapping.borrowed(address - answer.offset, answer.segment_size)
            else:
                mapping = self._map_foreign(call, answer, fd, offset - answer.offset)
            self._segments[answer.segment] = (mapping, 0)
            placed = msgspec.structs.replace(answer, fresh=False)
            return self._map_block(call, placed, [], size, self._to_free, read_only=read_only)

    def _map_foreign(self, call: str, answer: msg.MemAllocated, fd: int, start: int) -> SharedMapping:
        try:
            pages = map_pages(fd, answer.segment_size, start)
        except OSError as failure:
            self._connection.post(msg.MemFree(memory=(answer.memory,)))
            raise _no_pages(call, answer.segment_size, failure) from failure
        return SharedMapping.of_pages(memoryview(pages).cast("B"))

    def _check_free(self, call: str, address: int, size: int) -> None:
        """Reject memory that is already an allocation of this context."""
        with self._lock:
            block = self._last_until(address + size - 1)
        if block is not None and address < block.address + block.size:
            found = f"part of {describe(block.handle)}"
            del block  # the error would keep it alive
            raise invalid_argument(
                call,
                f"{size} bytes at {address:#x}",
                found=found,
                expected="memory that this context does not have",
            )

    def export_segment(self, call: str, block: Block) -> int:
        """Return a new descriptor of the block's segment. Raises INVALID_ENUMERATION if not exportable."""
        fd = self._exported.get(block.segment)
        if fd is None:
            raise error(
                call,
                ZeResult.ERROR_INVALID_ENUMERATION,
                describe(block.handle),
                found="allocated without the export flag",
                expected="an exportable allocation",
            )
        return streams.duplicate(fd)

    def create_queue(self, call: str, request: msg.QueueCreate, size: int) -> tuple[int, Block]:
        """Create a queue; return its handle, and its ring of `size` bytes, which the daemon frees with it."""
        with self._connection.deferred_section(), self._lock:
            self.flush()
            answer, fds = self._connection.request(
                call, request, msg.QueueCreated, on_late_answer=self._on_late_queue
            )
            try:
                return answer.queue, self._map_answer(call, answer.ring, fds, size, self._freed_by_daemon)
            except BaseException:
                self._connection.post(msg.QueueDestroy(queue=answer.queue))
                raise

    def _on_late_allocation(self, answer: msg.Answer, fds: list[int]) -> None:
        assert isinstance(answer, msg.MemAllocated)
        self._late.append((answer, fds, self._to_free))

    def _on_late_import(self, answer: msg.Answer, fds: list[int]) -> None:
        """Free an import without mapping it: nothing else lies in its segment."""
        assert isinstance(answer, msg.MemAllocated)
        for fd in fds:
            os.close(fd)
        self._connection.defer(lambda: self._connection.post(msg.MemFree(memory=(answer.memory,))))

    def _on_late_queue(self, answer: msg.Answer, fds: list[int]) -> None:
        assert isinstance(answer, msg.QueueCreated)
        self._late.append((answer.ring, fds, self._freed_by_daemon))
        self._connection.defer(lambda: self._connection.post(msg.QueueDestroy(queue=answer.queue)))

    def _map_answer(
        self,
        call: str,
        answer: msg.MemAllocated,
        fds: list[int],
        size: int,
        end: deque[tuple[int, int, int]],
        alignment: int = 0,
    ) -> Block:
        while self._late:
            # allocated before: a later answer may lie in the same segment
            placed, its_fds, its_end = self._late.popleft()
            self._map_block(call, placed, its_fds, 1, its_end)
        return self._map_block(call, answer, fds, size, end, alignment)

    def _map_block(
        self,
        call: str,
        answer: msg.MemAllocated,
        fds: list[int],
        size: int,
        end: deque[tuple[int, int, int]],
        alignment: int = 0,
        *,
        read_only: bool = False,
    ) -> Block:
        mapping, count = self._map(call, answer, fds, alignment)
        if not 0 <= answer.offset <= mapping.size - size:
            raise self._connection.protocol_error(
                call, f"it placed {size} bytes at {answer.offset} of a segment of {mapping.size}"
            )
        self._segments[answer.segment] = (mapping, count + 1)
        block = Block(answer.memory, mapping, answer.segment, answer.offset, size, read_only=read_only)
        self._addresses.add(block.address)
        self._blocks[block.address] = (block.handle, weakref.ref(block))
        note = (block.handle, answer.segment, block.address)
        weakref.finalize(block, self._collect, end, note).atexit = False
        return block

    def _collect(self, end: deque[tuple[int, int, int]], note: tuple[int, int, int]) -> None:
        end.append(note)
        self._connection.defer(self.flush)

    def flush(self) -> None:
        """Free unreferenced memory."""
        with self._connection.deferred_section(), self._lock:
            if self._closed:
                return
            while self._freed_by_daemon:
                self._unregister(*self._freed_by_daemon.popleft())
            freed_now = []
            while self._to_free:
                freed_now.append(self._to_free.popleft())
                self._unregister(*freed_now[-1])
            if not freed_now or self._connection.is_lost():
                return  # the daemon's memory is gone with it
            for start in range(0, len(freed_now), 1024):
                handles = tuple(entry[0] for entry in freed_now[start : start + 1024])
                self._connection.request("zeMemFree", msg.MemFree(memory=handles), msg.Ok)

    @property
    def closed(self) -> bool:
        """Whether the context was destroyed."""
        return self._closed

    def close(self) -> None:
        """Unmap everything: the daemon has freed it."""
        with self._lock:
            self._closed = True
            self._to_free.clear()
            self._freed_by_daemon.clear()
            while self._late:
                for fd in self._late.popleft()[1]:
                    os.close(fd)
            self._segments.clear()
            while self._exported:
                os.close(self._exported.popitem()[1])
            self._addresses.clear()
            self._blocks.clear()

    def resolve(
        self, call: str, memory: object, unknown: ZeResult = ZeResult.ERROR_INVALID_ARGUMENT
    ) -> tuple[Block, int]:
        """Return the block and offset of an allocation, a view of one, or an address inside one.

        Raises `ZeError`: INVALID_NULL_POINTER for None and 0, `unknown` for memory of another context.
        """
        if isinstance(memory, Allocation):
            memory._check(call)
            return self._own(call, memory._block, unknown), 0
        if memory is None:
            address = 0
        elif isinstance(memory, int):
            address = memory
        else:
            address = _array_address(call, memory)
        return self._resolve_address(call, address, unknown)

    def resolve_target(
        self, call: str, memory: object, unknown: ZeResult = ZeResult.ERROR_INVALID_ARGUMENT
    ) -> tuple[Block, int]:
        """Return the same for memory that a command writes; INVALID_ARGUMENT if it is for reading only."""
        block, offset = self.resolve(call, memory, unknown)
        if block.read_only:
            raise invalid_argument(
                call,
                describe(block.handle),
                found="imported for reading only",
                expected="memory that the device may write",
            )
        return block, offset

    def _resolve_address(self, call: str, address: int, unknown: ZeResult) -> tuple[Block, int]:
        if address == 0:
            raise null_pointer(call, "memory", found="null pointer", expected="an address")
        with self._lock:
            block = self._last_until(address)
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

    def _last_until(self, address: int) -> Block | None:
        """Return the live block that begins last at or before an address. Requires `_lock`."""
        start = self._addresses.last_until(address)
        entry = None if start is None else self._blocks.get(start)
        return None if entry is None else entry[1]()

    def _own(self, call: str, block: Block, unknown: ZeResult) -> Block:
        """Return the block, if it belongs to this context."""
        self._resolve_address(call, block.address, unknown)
        return block

    def _map(
        self, call: str, answer: msg.MemAllocated, fds: list[int], alignment: int
    ) -> tuple[SharedMapping, int]:
        if not answer.fresh:
            known = self._segments.get(answer.segment)
            if known is None:
                raise self._connection.protocol_error(
                    call, f"segment {answer.segment} was lost by an interruption"
                )
            return known
        (fd,) = fds
        try:
            if failpoints.active is not None:
                failpoints.hit("client.map")
            if not answer.sparse:
                os.posix_fallocate(fd, 0, answer.segment_size)
            return SharedMapping(fd, answer.segment_size, alignment), 0
        except (OSError, ValueError) as failure:  # a shorter file, or of another kind
            self._connection.post(msg.MemFree(memory=(answer.memory,)))
            raise _no_pages(call, answer.segment_size, failure) from failure
        finally:
            os.close(fd)

    def _unregister(self, handle: int, segment: int, at: int) -> None:
        mapping, count = self._segments[segment]
        if count == 1:
            del self._segments[segment]
            if segment in self._exported:
                os.close(self._exported.pop(segment))
        else:
            self._segments[segment] = (mapping, count - 1)
        self._addresses.remove(at)
        # the daemon may have reused its place already (a ring is freed with its queue)
        entry = self._blocks.get(at)
        if entry is not None and entry[0] == handle:
            del self._blocks[at]


def _array_address(call: str, memory: object) -> int:
    import numpy as np  # late: who has an array has imported it

    if not isinstance(memory, np.ndarray):
        raise invalid_argument(
            call,
            "memory",
            found=f"a {type(memory).__name__}",
            expected="an Allocation, a numpy view of one, or an address",
        )
    if not memory.flags.c_contiguous:
        raise invalid_argument(call, "array", found="not contiguous", expected="a C-contiguous view")
    return memory.ctypes.data


def _no_pages(call: str, size: int, failure: OSError | ValueError) -> ZeError:
    return error(
        call,
        ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
        f"segment of {size} bytes",
        found=getattr(failure, "strerror", None) or str(failure),
        expected="memory of the machine to back it",
    )


class _HasMemory(Protocol):
    _memory: MemoryPool


def locate(context: _HasMemory, call: str, memory: object) -> tuple[Block, int]:
    """Return the block and offset of memory of a context. Raises `ZeError` as `MemoryPool.resolve`."""
    return context._memory.resolve(call, memory)
