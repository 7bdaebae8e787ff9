"""Typed access to the records of `records` in mapped memory: a fence, and an event.

A word is read and written as one aligned machine access (a memoryview of format I or Q), so the other side
never sees a torn word.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from typing import Any

from softnpu.emulator.common import linux
from softnpu.emulator.common.address_range import map_shared_aligned
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import EventState

# Words of the records, and states as plain integers: reading an enumeration member takes 50 ns, half as long
# as reading an event.
_FENCE_WAITERS = records.FENCE_WAITERS // 4
_FENCE_RESULT = records.FENCE_RESULT // 4
_FENCE_ARMED = records.FENCE_ARMED // 8
_FENCE_CANCEL = records.FENCE_CANCEL // 8
_FENCE_TIME = records.FENCE_TIME // 8
_EVENT_CHANGES = records.EVENT_CHANGES // 4
_EVENT_WAITERS = records.EVENT_WAITERS // 4
_EVENT_TIME = records.EVENT_TIME // 8
_INITIAL = int(EventState.INITIAL)
_DEVICE_RESET = int(EventState.DEVICE_RESET)
_HOST_RESET = int(EventState.HOST_RESET)
_DEVICE_SIGNALLED = int(EventState.DEVICE_SIGNALLED)
_HOST_SIGNALLED = int(EventState.HOST_SIGNALLED)


class SharedMapping:
    """A segment in this process: the bytes, the same as 32-bit and 64-bit words, and its address.

    Stays mapped as long as anything refers to its buffer. Its address is a multiple of `alignment` if the
    address space of this process has room for that, else of the page.
    """

    __slots__ = ("_aligned", "address", "buffer", "longs", "size", "words")

    def __init__(self, fd: int, size: int, alignment: int = 0, offset: int = 0) -> None:
        self.buffer: mmap.mmap = linux.map_shared(fd, size, offset)
        self.size = size
        self.address = linux.address_of(self.buffer)
        self.words = memoryview(self.buffer).cast("I")
        self.longs = memoryview(self.buffer).cast("Q")
        if alignment > mmap.PAGESIZE:
            # a second mapping of the same pages: the module `mmap` takes no address
            with contextlib.suppress(OSError):
                self._aligned = map_shared_aligned(fd, size, alignment)
                self.address = linux.address_of(self._aligned)

    @classmethod
    def borrowed(cls, address: int, size: int) -> SharedMapping:
        """Wrap whole pages that are already mapped; their owner keeps them mapped."""
        return cls.of_pages(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))

    @classmethod
    def of_pages(cls, pages: Any) -> SharedMapping:
        """Wrap whole pages that stay mapped as long as this view of their bytes lives."""
        mapping = cls.__new__(cls)
        mapping.buffer, mapping.size = pages, pages.nbytes
        mapping.address = linux.address_of(pages)
        mapping.words, mapping.longs = pages.cast("I"), pages.cast("Q")
        return mapping


class _Record:
    """64 bytes at `offset` of a mapping, as words of both widths."""

    __slots__ = ("_long", "_longs", "_mapping", "_word", "_words", "address")

    def __init__(self, mapping: SharedMapping, offset: int) -> None:
        self._words = mapping.words
        self._longs = mapping.longs
        self._word = offset >> 2
        self._long = offset >> 3
        self._mapping = mapping  # the address is valid as long as it lives
        self.address = mapping.address + offset


class FenceRecord(_Record):
    """A fence, 64 bytes at `offset` of a mapping.

    It is signalled for a submission when it holds that submission's ticket. Tickets are never reused, so a
    late signal for an earlier submission, of any queue, means nothing to a later one.
    """

    __slots__ = ()

    def is_signalled(self, ticket: int) -> bool:
        """Return whether the submission of this ticket has signalled it."""
        return self._longs[self._long] == ticket

    @property
    def result(self) -> int:
        """`ze_result_t` of the submission that signalled it last."""
        return self._words[self._word + _FENCE_RESULT]

    @property
    def armed(self) -> int:
        """The ticket of the submission that is to signal it; 0 for none."""
        return self._longs[self._long + _FENCE_ARMED]

    @property
    def time_ns(self) -> int:
        """Host clock when the device signalled it."""
        return self._longs[self._long + _FENCE_TIME]

    def arm(self, ticket: int) -> None:
        """Host: let the submission of this ticket signal it; 0: none."""
        self._longs[self._long + _FENCE_ARMED] = ticket

    def cancel(self, ticket: int) -> None:
        """Host: cancel the submission of this ticket before it begins, or end it early."""
        self._longs[self._long + _FENCE_CANCEL] = ticket

    def sleep(self, ticket: int, timeout_ns: int) -> None:
        """Sleep until something signals it, at most `timeout_ns`; the caller checks again."""
        waiters = self._word + _FENCE_WAITERS
        self._words[waiters] = 1
        linux.memory_fence()
        signalled = self._longs[self._long]
        if signalled == ticket:
            return
        # an earlier signal may have cleared the mark
        if not self._words[waiters]:
            self._words[waiters] = 1
        linux.futex_wait(self.address, signalled & 0xFFFFFFFF, timeout_ns)

    def is_cancelled(self, ticket: int) -> bool:
        """Device: return whether the driver has cancelled the submission of this ticket."""
        return self._longs[self._long + _FENCE_CANCEL] == ticket

    def signal(self, ticket: int, result: int) -> None:
        """Device: signal the end of this ticket's submission. A no-op if the fence waits for another one."""
        if self._longs[self._long + _FENCE_ARMED] != ticket:
            return
        self._words[self._word + _FENCE_RESULT] = result
        self._longs[self._long + _FENCE_TIME] = time.monotonic_ns()
        # the mark is cleared before the ticket is stored: a waiter that marks itself later sees the ticket,
        # or the kernel does when it compares the word
        waiters = self._word + _FENCE_WAITERS
        marked = self._words[waiters]
        if marked:
            self._words[waiters] = 0
        self._longs[self._long] = ticket
        _wake(self._words, waiters, marked, self.address)

    def wake(self) -> None:
        """Device: wake every waiter, marked or not."""
        linux.futex_wake(self.address)


class EventRecord(_Record):
    """An event, 64 bytes at `offset` of a mapping.

    Commands store its state together with the number of changes, as one word: that number tells the next
    engine whether an interrupted command has changed it. The host stores the state alone.
    """

    __slots__ = ()

    @property
    def state(self) -> int:
        return self._words[self._word]

    @property
    def signalled(self) -> bool:
        return self._words[self._word] > _HOST_RESET

    @property
    def changes(self) -> int:
        """How often commands have signalled or reset it, modulo 2^32."""
        return self._words[self._word + _EVENT_CHANGES]

    @property
    def time_ns(self) -> int:
        """Host clock when a command signalled it."""
        return self._longs[self._long + _EVENT_TIME]

    def initialize(self) -> None:
        """Host: initialize a new event."""
        self._words[self._word] = _INITIAL

    def host_reset(self) -> None:
        """Host: reset it."""
        self._words[self._word] = _HOST_RESET

    def host_signal(self) -> None:
        """Host: signal it and wake every waiter."""
        waiters, marked = self._clear_mark()
        self._words[self._word] = _HOST_SIGNALLED
        _wake(self._words, waiters, marked, self.address)

    def device_signal(self) -> None:
        """Device: signal it and wake every waiter."""
        self._longs[self._long + _EVENT_TIME] = time.monotonic_ns()
        waiters, marked = self._clear_mark()
        self._change(_DEVICE_SIGNALLED)
        _wake(self._words, waiters, marked, self.address)

    def device_reset(self) -> None:
        """Device: reset it."""
        self._change(_DEVICE_RESET)

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until the state changes, at most `timeout_ns`; the caller checks the state again."""
        waiters = self._word + _EVENT_WAITERS
        self._words[waiters] = 1
        linux.memory_fence()
        state = self._words[self._word]
        if state > _HOST_RESET:
            return
        # a signal that was reset since may have cleared the mark
        if not self._words[waiters]:
            self._words[waiters] = 1
        linux.futex_wait(self.address, state, timeout_ns)

    def _change(self, state: int) -> None:
        changes = (self._words[self._word + _EVENT_CHANGES] + 1) & 0xFFFFFFFF
        self._longs[self._long] = changes << 32 | state

    def _clear_mark(self) -> tuple[int, int]:
        # cleared before the state is stored: a waiter that marks itself later sees the new state, or the
        # kernel does when it compares the word
        waiters = self._word + _EVENT_WAITERS
        marked = self._words[waiters]
        if marked:
            self._words[waiters] = 0
        return waiters, marked


def _wake(words: memoryview, waiters: int, marked: int, address: int) -> None:
    if not marked:
        linux.memory_fence()
        marked = words[waiters]
    if marked:
        linux.futex_wake(address)
