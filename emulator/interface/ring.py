"""The ring of a command queue, with its two ends: the driver submits, the device completes.

Submissions are counted from 1; submission `s` uses slot `(s - 1) % slots`. The driver fills slots and stores
the tail, the device stores how many submissions have ended. Each stores its word first and then reads the
other's, with a memory fence in between: neither goes to sleep while the other believes it awake.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.interface.shared import SharedMapping

_LARGEST = 2**64 - 1
_SEQUENCE_SIZE = 8
_TICKET_WORD = records.SLOT_TICKET >> 3


class Slot(NamedTuple):
    """The fields of one slot, as in `records.SLOT`."""

    sequence: int
    buffer: int
    offset: int
    size: int
    flags: int
    fence: int
    fence_offset: int
    ticket: int
    result: int
    reserved: int


class _Ring:
    """The words of a ring at `offset` of a mapping.

    Attributes in `_at`, and `_first_result`, are indices into `_words` (bytes >> 2) or `_longs` (bytes >> 3).
    """

    def __init__(self, mapping: SharedMapping, offset: int, slots: int) -> None:
        self.slots = slots
        self._buffer, self._words, self._longs = mapping.buffer, mapping.words, mapping.longs
        self._mapping = mapping  # the address is valid as long as it lives
        self.address = mapping.address + offset
        self._base = offset
        self._mask = slots - 1
        self._first_slot = offset + records.RING_HEADER
        self._first_result = (self._first_slot + records.SLOT_RESULT) >> 2
        self._tail_at = (offset + records.RING_TAIL) >> 3
        self._completed_at = (offset + records.RING_COMPLETED) >> 3
        self._completed_address = self.address + records.RING_COMPLETED
        self._asleep_at = (offset + records.RING_ASLEEP) >> 2
        self._waiters_at = (offset + records.RING_WAITERS) >> 2
        self._lost_at = (offset + records.RING_LOST) >> 2
        self._failed_at = (offset + records.RING_FAILED) >> 3
        self._result_at = (offset + records.RING_RESULT) >> 2
        self._text_size_at = (offset + records.RING_TEXT_SIZE) >> 2

    @property
    def is_lost(self) -> bool:
        """Whether the queue is lost."""
        return bool(self._words[self._lost_at])

    def result(self, sequence: int) -> int:
        """`ze_result_t` of an ended submission, until its slot is reused."""
        return self._words[self._first_result + ((sequence - 1) & self._mask) * (records.SLOT_SIZE >> 2)]

    def slot(self, sequence: int) -> Slot:
        """Return the content of a submission's slot."""
        return Slot(*SLOT.unpack_from(self._buffer, self._slot_at(sequence)))

    def _slot_at(self, sequence: int) -> int:
        return self._first_slot + ((sequence - 1) & self._mask) * records.SLOT_SIZE


class DriverRing(_Ring):
    """The driver's end. Its caller keeps the tail, and submits from one thread at a time."""

    def __init__(self, mapping: SharedMapping, offset: int, slots: int) -> None:
        super().__init__(mapping, offset, slots)
        self._waiters_lock = threading.Lock()

    @property
    def tail(self) -> int:
        """The last submission that the device may take."""
        return self._longs[self._tail_at]

    @property
    def completed(self) -> int:
        """The number of ended submissions."""
        return self._longs[self._completed_at]

    @property
    def waiters(self) -> int:
        """The number of threads sleeping until a submission ends."""
        return self._words[self._waiters_at]

    @property
    def is_asleep(self) -> bool:
        """Whether the device has stopped polling this ring."""
        return bool(self._words[self._asleep_at])

    def fill(
        self, sequence: int, buffer: int, size: int, fence: int = 0, fence_offset: int = 0, ticket: int = 0
    ) -> None:
        """Write a submission into its slot: `size` bytes of commands in memory `buffer`, and its fence."""
        at = self._first_slot + ((sequence - 1) & self._mask) * records.SLOT_SIZE
        SLOT.pack_into(self._buffer, at, sequence, buffer, 0, size, 0, fence, fence_offset, ticket, 0, 0)

    def publish(self, tail: int) -> None:
        """Publish the filled slots up to submission `tail`."""
        self._longs[self._tail_at] = tail

    def needs_doorbell(self) -> bool:
        """Return whether the device has to be woken for what was published."""
        linux.memory_fence()
        return bool(self._words[self._asleep_at])

    def sleep(self, sequence: int, timeout_ns: int) -> None:
        """Sleep until a submission ends, at most `timeout_ns`; not at all if `sequence` has ended."""
        with self._waiters_lock:
            self._words[self._waiters_at] += 1
        linux.memory_fence()
        try:
            completed = self._longs[self._completed_at]
            if completed < sequence:
                linux.futex_wait(self._completed_address, completed & 0xFFFFFFFF, timeout_ns)
        finally:
            with self._waiters_lock:
                self._words[self._waiters_at] -= 1

    # ------------------------------------------------------------ the last failure

    @property
    def failed(self) -> int:
        """The last failed submission."""
        return self._longs[self._failed_at]

    @property
    def failure_result(self) -> int:
        """`ze_result_t` of the last failure."""
        return self._words[self._result_at]

    def failure(self) -> ErrorInfo | None:
        """Return the reason of the last failure; None if the text cannot be read."""
        try:
            return msgspec.msgpack.decode(self.failure_text(), type=ErrorInfo)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def failure_text(self) -> bytes:
        """Return the reason of the last failure as it lies in the ring: an `ErrorInfo` as msgpack."""
        size = min(self._words[self._text_size_at], records.RING_TEXT_MAX)
        start = self._base + records.RING_TEXT
        return self._buffer[start : start + size]


class DeviceRing(_Ring):
    """The device's end. `completed` is kept here, never read back from client-writable memory."""

    def __init__(self, mapping: SharedMapping, offset: int, slots: int, completed: int) -> None:
        super().__init__(mapping, offset, slots)
        self.completed = completed

    def pending(self) -> bool:
        """Return whether a submission is pending."""
        return self._longs[self._tail_at] != self.completed

    def waiting(self) -> int:
        """Return the number of pending submissions by the client's tail, which may be anything."""
        return self._longs[self._tail_at] - self.completed

    def copy_slot(self, sequence: int) -> tuple[int, bytes, int]:
        """Return a slot's sequence number, its bytes up to the ticket, and the ticket."""
        at = self._first_slot + ((sequence - 1) & self._mask) * records.SLOT_SIZE
        content = self._buffer[at + _SEQUENCE_SIZE : at + records.SLOT_TICKET]
        word = at >> 3
        return self._longs[word], content, self._longs[word + _TICKET_WORD]

    def set_asleep(self, asleep: bool) -> None:
        """Tell the driver whether it has to ring the doorbell."""
        self._words[self._asleep_at] = asleep

    def set_result(self, sequence: int, result: int) -> None:
        """Store the `ze_result_t` of a submission in its slot."""
        self._words[self._first_result + ((sequence - 1) & self._mask) * (records.SLOT_SIZE >> 2)] = result

    def is_published(self) -> bool:
        """Return whether the driver sees all ended submissions."""
        return self._longs[self._completed_at] == self.completed

    def publish(self) -> None:
        """Publish the ended submissions to the driver, and wake their waiters."""
        self._longs[self._completed_at] = self.completed
        self.wake()

    def wake(self) -> None:
        """Wake the threads that wait for the end of a submission."""
        linux.memory_fence()
        if self._words[self._waiters_at]:
            linux.futex_wake(self._completed_address)

    def set_lost(self) -> None:
        """Tell the driver that the queue is lost: nothing of it runs any more."""
        self._words[self._lost_at] = 1

    def set_failure(self, sequence: int, info: ErrorInfo) -> None:
        """Store why a submission has failed; the text replaces the previous failure's."""
        text = _encode(info)
        start = self._base + records.RING_TEXT
        self._buffer[start : start + len(text)] = text
        self._words[self._text_size_at] = len(text)
        self._words[self._result_at] = info.result
        self._longs[self._failed_at] = sequence & _LARGEST


def _encode(info: ErrorInfo) -> bytes:
    """Encode the error as msgpack in at most `RING_TEXT_MAX` bytes; truncate long texts, never the code."""
    limit = records.RING_TEXT_MAX
    while True:
        cut = ErrorInfo(
            result=info.result,
            object=info.object[:limit],
            found=info.found[:limit],
            expected=info.expected[:limit],
            hint=info.hint[:limit],
        )
        data = msgspec.msgpack.encode(cut)
        if len(data) <= records.RING_TEXT_MAX:
            return data
        limit //= 2
