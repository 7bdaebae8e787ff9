"""What `softnpu check` denies the program: memory in flight, and freed memory (`driver/native/guard`)."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
from pathlib import Path
from typing import Final

from softnpu.driver.block import Block
from softnpu.emulator.common import native_files

PAGE: Final = 4096
Queue = tuple[int, int]
"""Session and handle of a queue."""


class Denied(enum.IntEnum):
    """What the program may not do with memory for now."""

    NOTHING = 0
    WRITING = 1
    EVERYTHING = 2
    FREED = 3


class AccessWatch:
    """The watched allocations of this process: each has pages of its own."""

    def __init__(self, directory: Path, key: str) -> None:
        library = ctypes.CDLL(str(native_files.guard()))
        library.softnpu_watch_add.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.softnpu_watch_add.restype = ctypes.c_long
        library.softnpu_watch_set.argtypes = (ctypes.c_long, ctypes.c_int)
        library.softnpu_watch_remove.argtypes = (ctypes.c_long, ctypes.c_int)
        library.softnpu_watch_install.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        library.softnpu_watch_gate.argtypes = (ctypes.c_char_p,)
        self._library = library
        self._slots: dict[int, int] = {}  # by address
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

    def add(self, block: Block) -> None:
        """Watch an allocation that shares no page with another."""
        slot = self._library.softnpu_watch_add(block.address, block.size)
        if slot >= 0:
            self._slots[block.address] = slot

    def remove(self, address: int, *, mapped: bool) -> None:
        """Stop watching an allocation; `mapped`: its pages are still there."""
        slot = self._slots.pop(address, None)
        self._uses.pop(address, None)
        if slot is not None:
            self._library.softnpu_watch_remove(slot, mapped)

    def use(self, queue: Queue, sequence: int, uses: dict[int, Denied]) -> None:
        """Deny the program what a submission uses, by address, until it is `over`."""
        for address, denied in uses.items():
            if address not in self._slots:
                continue
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

    def free(self, address: int) -> None:
        """Deny freed memory for good; a view that is still used is told once."""
        slot = self._slots.get(address)
        if slot is not None:
            self._library.softnpu_watch_set(slot, Denied.FREED)

    def _apply(self, address: int) -> None:
        slot = self._slots.get(address)
        if slot is not None:
            denied = max(self._uses.get(address, {}).values(), default=Denied.NOTHING)
            self._library.softnpu_watch_set(slot, denied)
