"""Memory that outlives the engine, for results that must not be computed twice.

What overwrites its own input cannot be done again after half of it: an inference with its state in place, a
copy onto itself. Its results go into a piece of the staging file first. Then the piece is noted with the
queue (`Turn.note_effect`), and only then they are copied to where they belong, which can be done again. An
engine that follows a dead one finds the note, and goes on with the copy.

The file belongs to the supervisor, which maps nothing of it. Clients do not have it.
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
import numpy.typing as npt

from softnpu.emulator.common import linux
from softnpu.emulator.common.range_allocator import RangeAllocator

Bytes = npt.NDArray[np.uint8]

_PAGE = mmap.PAGESIZE
_HEADER = struct.Struct("<8sQ")
_MAGIC = b"SNPSTAGE"
_DATA = 64  # where the bytes of a piece begin: aligned as OpenVINO's own tensors are
_LARGEST = 1 << 50
_STAGED = 1
_NUMBER_BITS = 24
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


def moved(number: int) -> int:
    """A note: `number` parts of the step are done, and nothing is staged."""
    return number << 1


class Note(NamedTuple):
    """What a step has noted: `number` parts are done, and the results of the next one lie in a piece."""

    piece: int | None
    number: int

    @classmethod
    def read(cls, value: int) -> Note:
        """The note behind the value."""
        place = value >> _NUMBER_BITS if value & _STAGED else None
        return cls(place, (value & _NUMBER_MASK) >> 1)


class Piece:
    """A range of the staging file. `array`: its bytes; the range is taken as long as a view of them lives."""

    __slots__ = ("_page", "array")

    def __init__(self, page: int, array: Bytes) -> None:
        self._page = page
        self.array = array

    def note(self, number: int = 0) -> int:
        """A note: `number` parts of the step are done, the results of the next one lie here."""
        return self._page << _NUMBER_BITS | number << 1 | _STAGED


class Noted(Protocol):
    """A queue, as far as its note goes."""

    closed: bool

    def pending_effect(self) -> int | None:
        """The note of its current step."""
        ...


class Staging:
    """The staging file in an engine. Pieces begin as zeros, and take no memory any more once given back."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._free = RangeAllocator(_LARGEST)
        self._returned: deque[tuple[int, int]] = deque()  # pieces die in any thread
        self._map: mmap.mmap | None = None
        self._size = 0  # of the mapping
        self._pending: list[tuple[Noted, int, Piece]] = []

    # ------------------------------------------------------------ after a dead engine

    def recover(self, queues: Iterable[Noted]) -> None:
        """Keeps the pieces that a dead engine has noted for these queues, and frees all others."""
        size = os.fstat(self._fd).st_size
        if not size:
            return
        notes = [(queue, value) for queue in queues if (value := queue.pending_effect()) is not None]
        places = {place for _, value in notes if (place := Note.read(value).piece) is not None}
        if not places:
            os.ftruncate(self._fd, 0)
            return
        mapping = self._map_file(size)
        self._free.allocate(_LARGEST, _PAGE)
        end, kept = 0, {}
        for place in sorted(places):
            start, length = place * _PAGE, self._length(place, size)
            if not length or start < end:
                continue  # no step has noted it like this; who asks for it is refused
            if start > end:
                _give_back(mapping, self._returned, end, start - end)
            kept[place], end = self._piece(start, length), start + length
        _release(mapping, end, size - end)
        self._free.free(end, _LARGEST - end)
        self._pending = [
            (queue, value, kept[place])
            for queue, value in notes
            if (place := Note.read(value).piece) is not None and place in kept
        ]

    @property
    def pending(self) -> bool:
        """Whether pieces of a dead engine are kept."""
        return bool(self._pending)

    def find(self, note: int, size: int) -> Bytes:
        """The results, of that size, that a dead engine has noted so."""
        for _, value, piece in self._pending:
            if value == note and piece.array.size >= size:
                return piece.array[:size]
        raise RuntimeError(f"{size} bytes of results were noted and are not there: its commands have changed")

    def settle(self) -> None:
        """Frees the kept pieces of queues that have gone on since, or are gone."""
        self._pending = [
            (queue, value, piece)
            for queue, value, piece in self._pending
            if not queue.closed and queue.pending_effect() == value
        ]

    def _length(self, place: int, size: int) -> int:
        """The length of the piece at a page of the file, 0 if none begins there."""
        start = place * _PAGE
        if self._map is None or start + _DATA > size:
            return 0
        magic, length = _HEADER.unpack_from(self._map, start)
        return length if magic == _MAGIC and 0 < length <= size - start and not length % _PAGE else 0

    # ------------------------------------------------------------ pieces

    def take(self, size: int) -> Piece:
        """A piece of at least `size` bytes, all 0. Raises `MemoryError`."""
        while self._returned:
            self._free.free(*self._returned.popleft())
        length = -(-(size + _DATA) // _PAGE) * _PAGE
        start = self._free.allocate(length, _PAGE)
        if start is None:
            raise MemoryError(f"staging: {size} bytes")
        try:
            # pages are reserved here: a write without memory behind it would be the end of the engine
            os.posix_fallocate(self._fd, start, length)
            if start + length > self._size:
                self._map_file(max(start + length, 2 * self._size))
        except OSError as error:
            self._free.free(start, length)
            raise MemoryError(f"staging: {size} bytes, {error}") from error
        assert self._map is not None
        _HEADER.pack_into(self._map, start, _MAGIC, length)
        return self._piece(start, length)

    def _piece(self, start: int, length: int) -> Piece:
        memory = self._map
        assert memory is not None
        whole: Any = (ctypes.c_ubyte * length).from_buffer(memory, start)
        # views refer to this array: it lives as long as the last of them
        weakref.finalize(whole, _give_back, memory, self._returned, start, length).atexit = False
        return Piece(start // _PAGE, np.frombuffer(whole, np.uint8)[_DATA:])

    def _map_file(self, size: int) -> mmap.mmap:
        # views of smaller mappings stay as they are: it is the same file
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
        self._map, self._size = linux.map_shared(self._fd, size), size
        return self._map


def _give_back(mapping: mmap.mmap, returned: deque[tuple[int, int]], start: int, length: int) -> None:
    """Nobody uses these bytes any more; `returned` takes the range, whatever thread this is."""
    _release(mapping, start, length)
    returned.append((start, length))


def _release(mapping: mmap.mmap, start: int, length: int) -> None:
    """Gives memory back: these bytes are 0 from now on."""
    if length:
        mapping.madvise(mmap.MADV_REMOVE, start, length)
