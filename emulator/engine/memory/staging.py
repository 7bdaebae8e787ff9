"""Memory that outlives the engine, for results that must not be computed twice.

A command that overwrites its own input (an inference with its state in place, a copy onto itself) cannot be
restarted halfway. Its results go into a staging buffer first, the buffer is logged with the queue
(`EngineQueue.log_intent`), and then the results are copied to the client, which is repeatable. After
an engine reset the next engine reads the log and continues with the copy.

The file belongs to the supervisor, which does not map it. Clients have no access to it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from softnpu.emulator.common import linux
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.common.range_allocator import RangeAllocator
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ZeResult, refuse

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"SNPSTAGE"
_DATA = 64  # offset of the data in a buffer, aligned like OpenVINO's own tensors
_LARGEST = 1 << 50
_STAGED = 1
_NUMBER_BITS = 24
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


def moved(number: int) -> int:
    """Return the log entry: `number` parts of the step are done, nothing is staged."""
    return number << 1


class LogEntry(NamedTuple):
    """The log entry of a step: `number` parts are done, the results of the next one lie at `page`."""

    page: int | None
    number: int

    @classmethod
    def read(cls, value: int) -> LogEntry:
        """Decode a log entry."""
        page = value >> _NUMBER_BITS if value & _STAGED else None
        return cls(page, (value & _NUMBER_MASK) >> 1)


class StagingBuffer:
    """A range of the staging file, allocated as long as a view of `array` lives."""

    __slots__ = ("_page", "array")

    def __init__(self, page: int, array: Bytes) -> None:
        self._page = page
        self.array = array

    def entry(self, number: int = 0) -> int:
        """Return the log entry: `number` parts are done, the results of the next one lie here."""
        return self._page << _NUMBER_BITS | number << 1 | _STAGED


class LoggingQueue(Protocol):
    """A queue as seen by staging."""

    closed: bool

    def pending_intent(self) -> int | None:
        """Return the log entry of its current step."""
        ...


class StagingAccount(Protocol):
    """The account of a session, charged for its buffers."""

    staging_bytes: int


class _Uncounted:
    """The account of a dead engine's buffers, which live until their queues have continued."""

    staging_bytes = 0


_Returned = deque[tuple[int, int, StagingAccount]]


class Staging:
    """The staging file in an engine. New buffers are zeroed; freed ones take no memory.

    `limit`: the most bytes that one session may have in it.
    """

    def __init__(self, fd: int, limit: int = _LARGEST) -> None:
        self._fd = fd
        self._limit = limit
        self._free = RangeAllocator(_LARGEST)
        self._returned: _Returned = deque()  # buffers die in any thread
        self._map: mmap.mmap | None = None
        self._size = 0  # of the mapping
        self._pending: list[tuple[LoggingQueue, int, StagingBuffer]] = []

    # ------------------------------------------------------------ after an engine reset

    def recover(self, queues: Iterable[LoggingQueue]) -> None:
        """Keep the buffers that a dead engine has logged for these queues; free all others."""
        size = os.fstat(self._fd).st_size
        if not size:
            return
        entries = [(queue, value) for queue in queues if (value := queue.pending_intent()) is not None]
        pages = {page for _, value in entries if (page := LogEntry.read(value).page) is not None}
        if not pages:
            os.ftruncate(self._fd, 0)
            return
        mapping = self._map_file(size)
        self._free.allocate(_LARGEST, PAGE)
        end, kept = 0, {}
        for page in sorted(pages):
            start, length = page * PAGE, self._length(page, size)
            if not length or start < end:
                continue  # not logged like this by any step: `find` will refuse it
            if start > end:
                _free_range(mapping, self._returned, end, start - end, _Uncounted())
            kept[page], end = self._buffer(start, length, _Uncounted()), start + length
        _release(mapping, end, size - end)
        self._free.free(end, _LARGEST - end)
        self._pending = [
            (queue, value, kept[page])
            for queue, value in entries
            if (page := LogEntry.read(value).page) is not None and page in kept
        ]

    @property
    def pending(self) -> bool:
        """Whether buffers of a dead engine are kept."""
        return bool(self._pending)

    def find(self, entry: int, size: int) -> Bytes:
        """Return the results of a dead engine, by its log entry."""
        for _, value, buffer in self._pending:
            if value == entry and buffer.array.size >= size:
                return buffer.array[:size]
        raise RuntimeError(f"{size} bytes of logged results are missing: the commands have changed since")

    def settle(self) -> None:
        """Free the kept buffers of queues that have since continued or been dropped."""
        self._pending = [
            (queue, value, buffer)
            for queue, value, buffer in self._pending
            if not queue.closed and queue.pending_intent() == value
        ]

    def _length(self, page: int, size: int) -> int:
        """Return the length of the buffer at a page of the file, 0 if none begins there."""
        start = page * PAGE
        if self._map is None or start + _DATA > size:
            return 0
        magic, length = _HEADER.unpack_from(self._map, start)
        return length if magic == _MAGIC and 0 < length <= size - start and not length % PAGE else 0

    # ------------------------------------------------------------ buffers

    def take(self, size: int, account: StagingAccount) -> StagingBuffer:
        """Allocate a buffer of at least `size` bytes, all 0. Raises `MemoryError` or `Refused`."""
        while self._returned:
            at, freed, owner = self._returned.popleft()
            self._free.free(at, freed)
            owner.staging_bytes -= freed
        length = -(-(size + _DATA) // PAGE) * PAGE
        if account.staging_bytes + length > self._limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                "staging of commands that overwrite what they read, and of strided arguments",
                found=f"{length} bytes more, this session has {account.staging_bytes}",
                expected=f"at most {self._limit} bytes a session",
                hint="use other memory for results, or start the daemon with a larger --session-memory",
            )
        start = self._free.allocate(length, PAGE)
        if start is None:
            raise MemoryError(f"staging: {size} bytes")
        try:
            # reserves the pages: a write without backing memory would kill the engine
            os.posix_fallocate(self._fd, start, length)
            if start + length > self._size:
                self._map_file(max(start + length, 2 * self._size))
        except OSError as error:
            self._free.free(start, length)
            raise MemoryError(f"staging: {size} bytes, {error}") from error
        assert self._map is not None
        _HEADER.pack_into(self._map, start, _MAGIC, length)
        account.staging_bytes += length
        return self._buffer(start, length, account)

    def _buffer(self, start: int, length: int, account: StagingAccount) -> StagingBuffer:
        memory = self._map
        assert memory is not None
        whole: Any = (ctypes.c_ubyte * length).from_buffer(memory, start)
        # views refer to this array, which lives as long as the last of them
        freed = weakref.finalize(whole, _free_range, memory, self._returned, start, length, account)
        freed.atexit = False
        return StagingBuffer(start // PAGE, np.frombuffer(whole, np.uint8)[_DATA:])

    def _map_file(self, size: int) -> mmap.mmap:
        # views of smaller mappings stay valid: it is the same file
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
        self._map, self._size = linux.map_shared(self._fd, size), size
        return self._map


def _free_range(
    mapping: mmap.mmap, returned: _Returned, start: int, length: int, account: StagingAccount
) -> None:
    """Free a range, in any thread; `returned` passes it to the allocator."""
    _release(mapping, start, length)
    returned.append((start, length, account))


def _release(mapping: mmap.mmap, start: int, length: int) -> None:
    """Release the memory of a range, which reads as 0 from now on."""
    if length:
        mapping.madvise(mmap.MADV_REMOVE, start, length)
