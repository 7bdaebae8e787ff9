"""Typed access to the records of `records` in mapped memory: the signal, and both ends of a ring.

A word is read and written as one aligned machine access (a memoryview of format I or Q), so the other
side never sees half of it.
"""

from __future__ import annotations

import mmap
import time

from softnpu.emulator.interface import linux, records
from softnpu.emulator.interface.records import SignalState

# Words of a signal, and its states as plain integers: reading a member of an enumeration takes 50 ns,
# half of a look at a signal.
_WAITERS = records.SIGNAL_WAITERS // 4
_RESULT = records.SIGNAL_RESULT // 4
_CANCEL = records.SIGNAL_CANCEL // 4
_SUBMISSION = records.SIGNAL_SUBMISSION // 8
_TIME = records.SIGNAL_TIME // 8
_DEVICE_RESET = int(SignalState.DEVICE_RESET)
_HOST_RESET = int(SignalState.HOST_RESET)
_DEVICE_SIGNALLED = int(SignalState.DEVICE_SIGNALLED)
_HOST_SIGNALLED = int(SignalState.HOST_SIGNALLED)


class SharedMapping:
    """A segment in this process: the bytes, the same as 32-bit and 64-bit words, and its address.

    Stays mapped as long as anything refers to its buffer.
    """

    __slots__ = ("address", "buffer", "longs", "size", "words")

    def __init__(self, fd: int, size: int) -> None:
        self.buffer: mmap.mmap = linux.map_shared(fd, size)
        self.size = size
        self.address = linux.address_of(self.buffer)
        self.words = memoryview(self.buffer).cast("I")
        self.longs = memoryview(self.buffer).cast("Q")


class Signal:
    """A fence or an event, 64 bytes at `offset` of a mapping."""

    __slots__ = ("_address", "_long", "_longs", "_word", "_words")

    def __init__(self, mapping: SharedMapping, offset: int) -> None:
        self._words = mapping.words
        self._longs = mapping.longs
        self._word = offset >> 2
        self._long = offset >> 3
        self._address = mapping.address + offset

    @property
    def state(self) -> int:
        return self._words[self._word]

    @property
    def signalled(self) -> bool:
        return self._words[self._word] > _HOST_RESET

    @property
    def result(self) -> int:
        """Result of the submission that signalled it; 0 for success."""
        return self._words[self._word + _RESULT]

    @property
    def cancelled(self) -> bool:
        """Whether the driver asks that the submission of this fence is not begun any more."""
        return bool(self._words[self._word + _CANCEL])

    @property
    def submission(self) -> int:
        """The submission that will signal it, as the driver announced it; 0 for none."""
        return self._longs[self._long + _SUBMISSION]

    @property
    def time_ns(self) -> int:
        """Host clock when the device signalled it."""
        return self._longs[self._long + _TIME]

    def arm(self, state: SignalState, submission: int) -> None:
        """Host: not signalled; `submission` will signal it (0: nobody yet)."""
        self._longs[self._long + _SUBMISSION] = submission
        self._words[self._word + _RESULT] = 0
        self._words[self._word + _CANCEL] = 0
        self._words[self._word] = state

    def cancel(self) -> None:
        """Host: the submission of this fence need not begin any more."""
        self._words[self._word + _CANCEL] = 1

    def host_signal(self) -> None:
        """Host: signalled from now on; wakes every waiter."""
        self._signal(_HOST_SIGNALLED)

    def device_signal(self, result: int) -> None:
        """Device: signalled with this result; wakes every waiter."""
        self._words[self._word + _RESULT] = result
        self._longs[self._long + _TIME] = time.monotonic_ns()
        self._signal(_DEVICE_SIGNALLED)

    def device_reset(self) -> None:
        """Device: not signalled from now on."""
        self._words[self._word] = _DEVICE_RESET

    def sleep(self, timeout_ns: int) -> None:
        """Sleeps until the state changes, at most `timeout_ns`; the caller looks at the state again."""
        waiters = self._word + _WAITERS
        self._words[waiters] = 1
        linux.memory_fence()
        state = self._words[self._word]
        if state > _HOST_RESET:
            return
        # a signal that was reset since may have taken our mark with it
        if not self._words[waiters]:
            self._words[waiters] = 1
        linux.futex_wait(self._address, state, timeout_ns)

    def _signal(self, state: int) -> None:
        # the marks are taken before the state is stored: a waiter that marks itself later finds the new
        # state, or the kernel finds it when it compares the word
        waiters = self._word + _WAITERS
        marked = self._words[waiters]
        if marked:
            self._words[waiters] = 0
        self._words[self._word] = state
        if not marked:
            linux.memory_fence()
            marked = self._words[waiters]
        if marked:
            linux.futex_wake(self._address)
