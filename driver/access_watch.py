"""What `softnpu check` denies the program: memory in flight, and freed memory (`driver/native/guard`)."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import weakref
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from softnpu.driver.block import Block, view_of
from softnpu.emulator.common import native_files
from softnpu.emulator.interface import check_notes as notes

PAGE: Final = 4096
_REST: Final = 0xA5
"""What lies behind the end of an allocation, up to the next page."""
Queue = tuple[int, int]
"""Session and handle of a queue."""


class Denied(enum.IntEnum):
    """What the program may not do with memory for now."""

    NOTHING = 0
    WRITING = 1
    EVERYTHING = 2
    FREED = 3
    READING = 4
    """What nobody has written; writing allows everything."""


class AccessWatch:
    """The watched allocations of this process: each has pages of its own."""

    def __init__(self, directory: Path, key: str) -> None:
        library = ctypes.CDLL(str(native_files.guard()))
        library.softnpu_watch_add.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        library.softnpu_watch_add.restype = ctypes.c_long
        library.softnpu_watch_set.argtypes = (ctypes.c_long, ctypes.c_int)
        library.softnpu_watch_remove.argtypes = (ctypes.c_long, ctypes.c_int)
        library.softnpu_watch_install.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        library.softnpu_watch_gate.argtypes = (ctypes.c_char_p,)
        self._library = library
        self._slots: dict[int, int] = {}  # by address
        self._unused: dict[int, weakref.ref[Block]] = {}  # no submission has used it yet, by address
        self._freed: set[int] = set()
        self._guarded: set[int] = set()  # what lies behind the end is known, by address
        self._uses: dict[int, dict[tuple[Queue, int], Denied]] = {}  # by address, then queue and submission
        self._queues: dict[Queue, list[tuple[int, int]]] = {}  # queue to (submission, address)
        self.begin(directory, key)

    def begin(self, directory: Path, key: str) -> None:
        """Write to another file from now on, beside the notes with this key."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(directory / f"touched-{key}.txt", flags, 0o600)
        thread = frames = None
        with contextlib.suppress(AttributeError):  # another Python than CPython has no such functions
            thread = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
            frames = ctypes.cast(ctypes.pythonapi._Py_DumpTraceback, ctypes.c_void_p)
        code = self._library.softnpu_watch_install(file, thread, frames)
        if code:
            raise OSError(code, os.strerror(code))
        mode = self._library.softnpu_watch_gate(os.fsencode(directory / "gate"))
        self.asks, self.debugs = mode != 0, mode == ord("p")

    def stops(self) -> bool:
        """Return whether the program is to stop here: `softnpu check --first` has found something."""
        return self.asks and bool(self._library.softnpu_watch_ask())

    def add(self, block: Block, *, exportable: bool) -> None:
        """Watch an allocation that shares no page with another, and fill it as unwritten.

        The page behind it is free, unless it is exportable: then it ends with its file, and others may write
        it.
        """
        slot = self._library.softnpu_watch_add(block.address, block.size, 0 if exportable else PAGE)
        _words(block)[:] = notes.UNWRITTEN
        if slot >= 0:
            self._slots[block.address] = slot
            if not exportable:
                self._guarded.add(block.address)
                _rest(block)[:] = _REST
                self._unused[block.address] = weakref.ref(block)

    def remove(self, address: int, *, mapped: bool) -> None:
        """Stop watching an allocation; `mapped`: its pages are still there."""
        slot = self._slots.pop(address, None)
        self._uses.pop(address, None)
        self._unused.pop(address, None)
        self._guarded.discard(address)
        self._freed.discard(address)
        if slot is not None:
            self._library.softnpu_watch_remove(slot, mapped)

    def use(self, queue: Queue, sequence: int, uses: dict[int, Denied]) -> None:
        """Deny the program what a submission uses, by address, until it is `over`."""
        for address, denied in uses.items():
            if address not in self._slots:
                continue
            self._unused.pop(address, None)
            self._uses.setdefault(address, {})[queue, sequence] = denied
            self._queues.setdefault(queue, []).append((sequence, address))
            self._apply(address)

    def over(self, queue: Queue, sequence: int) -> None:
        """Allow what the submissions of a queue up to this one have used."""
        left = []
        for number, address in self._queues.pop(queue, ()):
            if number > sequence:
                left.append((number, address))
            elif address in self._uses:
                self._uses[address].pop((queue, number), None)
                self._apply(address)
        if left:
            self._queues[queue] = left

    def all_over(self) -> None:
        """Allow everything in flight: an event may order any of it."""
        for queue in list(self._queues):
            self.over(queue, 1 << 63)

    def expect(self, uses: dict[int, Denied]) -> None:
        """Deny the program to read what a closed list is to write, as long as nobody has written it."""
        for address, denied in uses.items():
            if denied is not Denied.EVERYTHING or (found := self._unused.pop(address, None)) is None:
                continue
            block = found()
            if block is not None and bool((_words(block) == notes.UNWRITTEN).all()):
                self._library.softnpu_watch_set(self._slots[address], Denied.READING)

    def free(self, address: int, block: Block | None = None) -> int | None:
        """Deny freed memory for good; a view that is still used is told once.

        Return the first byte behind the end of the block that the program has written.
        """
        slot = self._slots.get(address)
        if slot is None:
            return None
        first = None
        if block is not None and address in self._guarded:
            self._library.softnpu_watch_set(slot, Denied.NOTHING)  # for us
            first = _written_behind(block)
        self._library.softnpu_watch_set(slot, Denied.FREED)
        self._freed.add(address)
        self._unused.pop(address, None)
        return first

    def close(self, address: int) -> None:
        """Stop watching an allocation at the end of its context, unless it is denied for good."""
        if address not in self._freed:
            self.remove(address, mapped=True)

    def _apply(self, address: int) -> None:
        slot = self._slots.get(address)
        if slot is not None:
            denied = max(self._uses.get(address, {}).values(), default=Denied.NOTHING)
            self._library.softnpu_watch_set(slot, denied)


def _words(block: Block) -> npt.NDArray[np.uint64]:
    return view_of(block)[: block.size - block.size % 8].view(np.uint64)


def _rest(block: Block) -> npt.NDArray[np.uint8]:
    """Return the bytes between the end of an allocation and the next page."""
    size = -block.size % PAGE
    behind = (ctypes.c_uint8 * size).from_address(block.address + block.size)
    return np.frombuffer(memoryview(behind), np.uint8)


def _written_behind(block: Block) -> int | None:
    places = np.flatnonzero(_rest(block) != _REST)
    return block.size + int(places[0]) if places.size else None
