"""The page through which prepared calls run: no message, and no system call as long as both sides are awake.

    u32 0    requests so far, written by the caller
    u32 1    the call to run
    u32 2    the caller sleeps until the answer: wake it (futex on `answers`)
    u32 16   answers so far, written by the process of kernels
    u32 17   0 done with full outputs, 1 done with smaller ones, 2 failed
    u32 18   the process sleeps until a request: write to its eventfd
    u64 10   bytes that were copied
    u64 11   nanoseconds that the kernel ran
    u64 32   for each output: rank, 8 extents
    u32 512  bytes of a `KernelFailed`, which follows

One call at a time. Each side writes its own words only, and neither trusts the other's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from softnpu.emulator.common import linux
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.interface.shared import SharedMapping

SIZE: Final = 8192
_REQUESTS, _CALL, _WAITING, _ANSWERS, _STATUS, _ASLEEP = 0, 1, 2, 16, 17, 18
_STAGED, _TIME, _SHAPES, _SHAPE = 10, 11, 32, 9
_ERROR, _ERROR_AT = 512, 2052
_SPIN_NS: Final = 50_000
_SLICE_NS: Final = 20_000_000
_NUMBERS: Final = 1 << 32
_SHRUNK, _FAILED = 1, 2


class CallerSide:
    """The side that asks."""

    def __init__(self, fd: int, wake_fd: int) -> None:
        self._memory = SharedMapping(fd, SIZE)
        self._words, self._longs = self._memory.words, self._memory.longs
        self._wake_fd = wake_fd
        self._spin = SpinBudget(_SPIN_NS)
        self._number = 0

    def request(self, call: int) -> None:
        """Ask for a run."""
        words = self._words
        self._number = (self._number + 1) % _NUMBERS
        words[_CALL] = call
        words[_REQUESTS] = self._number
        linux.memory_fence()
        if words[_ASLEEP]:
            os.eventfd_write(self._wake_fd, 1)

    def wait(self) -> bool:
        """Wait for the answer for a moment; whether it is there."""
        words, number = self._words, self._number
        if words[_ANSWERS] == number:
            return True
        limit = self._spin.limit_ns()
        if limit:
            end = time.monotonic_ns() + limit
            while time.monotonic_ns() < end:
                if words[_ANSWERS] == number:
                    self._spin.hit()
                    return True
            self._spin.miss()
        words[_WAITING] = 1
        linux.memory_fence()
        found = words[_ANSWERS]
        if found != number:
            linux.futex_wait(self._memory.address + 4 * _ANSWERS, found, _SLICE_NS)
        words[_WAITING] = 0
        return bool(words[_ANSWERS] == number)

    @property
    def has_full_outputs(self) -> bool:
        """Whether the run did not fail, and shrank no output."""
        return not self._words[_STATUS]

    @property
    def error(self) -> bytes | None:
        """Return the `KernelFailed` of the run; None if it did not fail."""
        if self._words[_STATUS] < _FAILED:
            return None
        size = min(self._words[_ERROR], SIZE - _ERROR_AT)
        return self._memory.buffer[_ERROR_AT : _ERROR_AT + size]

    @property
    def staged(self) -> int:
        """Return the bytes that were copied."""
        return self._longs[_STAGED]

    @property
    def time_ns(self) -> int:
        """Return how long the kernel ran."""
        return self._longs[_TIME]

    def shape(self, output: int, most: Sequence[int]) -> tuple[int, ...] | None:
        """Return the shape of an output, of at most these extents; None if it is no such shape."""
        at = _SHAPES + output * _SHAPE
        rank, *extents = self._longs[at : at + _SHAPE]
        if rank != len(most) or any(found > bound for found, bound in zip(extents, most, strict=False)):
            return None
        return tuple(extents[:rank])


class KernelSide:
    """The side that runs kernels."""

    def __init__(self, fd: int) -> None:
        self._memory = SharedMapping(fd, SIZE)
        self._words, self._longs = self._memory.words, self._memory.longs
        self._spin = SpinBudget(_SPIN_NS)
        self._number = 0

    def requested(self) -> int | None:
        """Return the call that is asked for; None if there is none."""
        number = self._words[_REQUESTS]
        if number == self._number:
            return None
        self._number = number
        return self._words[_CALL]

    def spin(self) -> int | None:
        """Look for a request for a moment."""
        words, number, now = self._words, self._number, time.monotonic_ns
        end = now() + self._spin.limit_ns()
        while words[_REQUESTS] == number:
            if now() >= end:
                self._spin.miss()
                return None
        self._spin.hit()
        return self.requested()

    def fall_asleep(self) -> bool:
        """Announce sleep; False if there is a request. `wake_up` has to follow."""
        self._words[_ASLEEP] = 1
        linux.memory_fence()
        return bool(self._words[_REQUESTS] == self._number)

    def wake_up(self) -> None:
        """Announce the end of sleep."""
        self._words[_ASLEEP] = 0

    def answer(self, smaller: Sequence[Sequence[int]] | None, staged: int, time_ns: int) -> None:
        """Answer with a run's end; `smaller`: the shapes of all outputs unless they are full."""
        self._longs[_STAGED], self._longs[_TIME] = staged, time_ns
        if smaller is None:
            self._answer(0)
            return
        for output, shape in enumerate(smaller):
            at = _SHAPES + output * _SHAPE
            self._longs[at] = len(shape)
            for dimension, extent in enumerate(shape, at + 1):
                self._longs[dimension] = extent
        self._answer(_SHRUNK)

    def fail(self, message: bytes) -> None:
        """Answer with a failure."""
        message = message[: SIZE - _ERROR_AT]
        self._words[_ERROR] = len(message)
        self._memory.buffer[_ERROR_AT : _ERROR_AT + len(message)] = message
        self._answer(_FAILED)

    def _answer(self, status: int) -> None:
        self._words[_STATUS] = status
        self._words[_ANSWERS] = self._number
        linux.memory_fence()
        if self._words[_WAITING]:
            linux.futex_wake(self._memory.address + 4 * _ANSWERS)
