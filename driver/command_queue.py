"""`ze_command_queue_handle_t`: the driver's end of a ring of submissions."""

from __future__ import annotations

import enum
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from softnpu.driver.command_list import CommandList
from softnpu.driver.description import QueueState, describe_ring
from softnpu.driver.errors import ZeError, error
from softnpu.driver.fence import Fence
from softnpu.driver.handle import Handle
from softnpu.driver.outcomes import Execution, Outcomes
from softnpu.driver.progress import Progress
from softnpu.driver.recording import Submission
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.common import failpoints, linux
from softnpu.emulator.common.spin import TurboBudget
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.result import ErrorInfo, ZeResult

if TYPE_CHECKING:
    from softnpu.driver.context import Context


class QueueMode(enum.IntEnum):
    """`ze_command_queue_mode_t`."""

    DEFAULT = 0
    SYNCHRONOUS = 1
    ASYNCHRONOUS = 2


class CommandQueue(Handle):
    """Submissions of a queue run in order; `priority` and `turbo` as in `Context.create_command_queue`."""

    def __init__(self, context: Context, priority: str, turbo: bool, slots: int, mode: QueueMode) -> None:
        self.context = context
        self.mode = mode
        self.spin = TurboBudget() if turbo else new_budget()
        request = msg.QueueCreate(context=context.handle, slots=slots, priority=priority, turbo=turbo)
        self.handle: int
        self.handle, ring = context.memory.create_queue(
            "zeCommandQueueCreate", request, records.ring_size(slots)
        )
        self._ring = ring
        self._slots = slots
        self._mask = slots - 1
        self._lock = threading.Lock()
        self._waiters_lock = threading.Lock()
        self._tail = 0
        # what the device may still touch: released when the submission has ended
        self._flight: deque[tuple[int, object]] = deque()
        self.progress = Progress(ring.mapping.longs, (ring.offset + records.RING_COMPLETED) >> 3)
        self._outcomes = Outcomes(
            ring.mapping.words,
            (ring.offset + records.RING_HEADER + records.SLOT_RESULT) >> 2,
            records.SLOT_SIZE >> 2,
            slots,
        )
        self._owns(
            context, context.connection, _destroy, context, self.handle, self._flight, self.progress, ring
        )
        self._buffer = ring.mapping.buffer
        self._words = ring.mapping.words
        self._longs = ring.mapping.longs
        self._slots_at = ring.offset + records.RING_HEADER
        self._tail_at = (ring.offset + records.RING_TAIL) >> 3
        self._done_at = (ring.offset + records.RING_COMPLETED) >> 3
        self._waiters_at = (ring.offset + records.RING_WAITERS) >> 2
        self._asleep_at = (ring.offset + records.RING_ASLEEP) >> 2
        self._lost_at = (ring.offset + records.RING_LOST) >> 2
        self._done_address = ring.address + records.RING_COMPLETED

    # ------------------------------------------------------------ submitting

    def execute_command_lists(self, lists: Sequence[CommandList], fence: Fence | None = None) -> None:
        """`zeCommandQueueExecuteCommandLists`: submits closed lists; the fence is signalled after the last.

        Lists behind one that fails run all the same; the fence has the result of the first that failed. With
        lists that are all empty it is signalled at once, whatever runs before (as on the real driver).
        Raises `ZeError`: INVALID_SIZE without lists, UNINITIALIZED for an open list,
        INVALID_SYNCHRONIZATION_OBJECT for another queue's fence, DEVICE_LOST when the daemon is gone.
        """
        call = "zeCommandQueueExecuteCommandLists"
        self.check(call)
        self.context.connection.check(call)
        if not lists:
            raise error(
                call, ZeResult.ERROR_INVALID_SIZE, "command lists", found="none", expected="at least one"
            )
        own = fence
        if fence is not None:
            fence.check(call)
            # as the real driver does: the work runs, and then the fence of another queue is an error
            own = fence if fence.queue is self else None
        filled = [recorded for entry in lists if (recorded := entry.submission(call, self)) is not None]
        if len(filled) > self._slots:
            raise error(
                call,
                ZeResult.ERROR_INVALID_SIZE,
                "command lists",
                found=f"{len(filled)}",
                expected=f"at most the {self._slots} slots of the queue",
            )
        if filled:
            self._submit(call, filled, own)
        elif own is not None:
            own.signal_now()  # only empty lists: nothing runs
        if fence is not own:
            raise error(
                call,
                ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT,
                "fence",
                found="created for another queue",
                expected="a fence of this queue",
            )
        if self.mode is QueueMode.SYNCHRONOUS:
            self.synchronize()

    def submit_recorded(self, call: str, recorded: Submission) -> None:
        """For immediate lists: submits one command buffer."""
        self._submit(call, [recorded], None)
        if self.mode is QueueMode.SYNCHRONOUS:
            self.synchronize()

    def set_workload_type(self, background: bool) -> None:
        """`pfnSetWorkloadType`: later submissions run below every priority, or as before."""
        call = "pfnSetWorkloadType"
        self.check(call)
        request = msg.QueueWorkload(queue=self.handle, background=background)
        self.context.connection.request(call, request, msg.Ok)

    def _submit(self, call: str, filled: list[Submission], fence: Fence | None) -> None:
        needed = len(filled) - self._slots
        while True:
            with self._lock:
                # read once: the results up to there have been read, and no others
                if self._release_ended() >= self._tail + needed:
                    self._fill_slots(filled, fence)
                    break
            self._wait_for_room(call, self._tail + needed)
        if failpoints.active is not None:
            failpoints.hit("client.submit")
        # the ring and its tail are stored before we look whether the engine sleeps; the engine stores
        # `asleep` before it looks at the tail
        linux.memory_fence()
        if self._words[self._asleep_at]:
            os.eventfd_write(self.context.doorbell, 1)

    def synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeCommandQueueSynchronize`: waits for all submissions; False (NOT_READY) when time has passed.

        Raises `ZeError` when the queue is lost, with the oldest failure that nobody was told of, and with
        DEVICE_LOST when the daemon is gone. Each failure is told once.
        """
        call = "zeCommandQueueSynchronize"
        self.check(call)
        tail = self._tail
        done = wait(
            call, lambda: self.is_over(tail), self._sleep, timeout_ns, self.context.connection, self.spin
        )
        if done:
            with self._lock:
                self._release_ended()
                untold = self._outcomes.take_untold(tail)
            self.check_alive(call, tail)
            if untold is not None:
                failure, more = untold
                raise self._error(call, failure.result, failure.sequence, more)
        return done

    def create_fence(self, signalled: bool = False) -> Fence:
        """`zeFenceCreate`."""
        self.check("zeFenceCreate")
        return Fence(self, signalled)

    def _forget(self) -> None:
        self.progress.gone = True

    @property
    def lost(self) -> bool:
        """Whether the device gave up on this queue: every later submission fails with DEVICE_LOST."""
        return bool(self._words[self._lost_at])

    def describe(self) -> QueueState:
        """The ring as it is now, with the submissions in flight and those that ended last. Not a call of
        Level Zero.
        """
        self.check("CommandQueue.describe")
        return describe_ring(self.handle, self._tail, self._buffer, self._ring.offset, self._slots)

    # ------------------------------------------------------------ for fences and lists

    def is_over(self, sequence: int) -> bool:
        """Whether submission `sequence` has ended or will never run: then nobody signals its fence."""
        return self.progress.has_ended(sequence) or self.destroyed

    def check_alive(self, call: str, sequence: int) -> None:
        """Raises `ZeError`: DEVICE_LOST when the queue is lost, INVALID_NULL_HANDLE when it is destroyed."""
        self.check(call)
        if self.lost:
            raise self._error(call, ZeResult.ERROR_DEVICE_LOST, sequence)

    def raise_failure(self, call: str, execution: Execution) -> None:
        """Raises `ZeError` for the first submission of an ended execution that failed, if one did."""
        with self._lock:
            if not self._outcomes.was_read(execution.last):
                self.check(call)  # the ring of a destroyed queue may be another's memory by now
                # the fence is signalled a moment before the ring counts its submission as ended
                self._outcomes.read(execution.last)
            failure = execution.failure
            if failure is None:
                return
            self._outcomes.told(failure.sequence)
        raise self._error(call, failure.result, failure.sequence)

    def _error(self, call: str, result: int, sequence: int, more: int = 0) -> ZeError:
        """The error of a failed submission, with the reason that the engine left in the ring."""
        info = self._last_fault()
        # the ring has the reason of the last failure only; but a lost queue has one reason for all
        mine = self._failed() == sequence or result == ZeResult.ERROR_DEVICE_LOST
        if info is None or info.result != result or not mine:
            info = ErrorInfo(result=result, object=f"submission {sequence}", found="it failed")
        if more:
            info = msgspec.structs.replace(info, found=f"{info.found} (and {more} more failed)")
        return ZeError(call, info)

    def _failed(self) -> int:
        return self._longs[(self._ring.offset + records.RING_FAILED) >> 3]

    def _last_fault(self) -> ErrorInfo | None:
        base = self._ring.offset
        size = min(self._words[(base + records.RING_TEXT_SIZE) >> 2], records.RING_TEXT_MAX)
        start = base + records.RING_TEXT
        try:
            return msgspec.msgpack.decode(self._buffer[start : start + size], type=ErrorInfo)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    # ------------------------------------------------------------

    def _wait_for_room(self, call: str, sequence: int) -> None:
        """Waits until a submission whose slot is needed has ended: the device ends each in time."""
        wait(
            call,
            lambda: self.is_over(sequence),
            self._sleep,
            FOREVER,
            self.context.connection,
            self.spin,
        )
        self.check(call)

    def _fill_slots(self, filled: list[Submission], fence: Fence | None) -> None:
        sequence = self._tail
        last = sequence + len(filled)
        execution = None
        if fence is not None:
            execution = Execution(next(self.context.tickets), sequence + 1, last)
            self._outcomes.expect(execution)
            fence.arm(execution)
        for recorded in filled:
            sequence += 1
            signal = fence if sequence == last else None
            ticket = execution.ticket if execution is not None and sequence == last else 0
            SLOT.pack_into(
                self._buffer,
                self._slots_at + ((sequence - 1) & self._mask) * records.SLOT_SIZE,
                sequence,
                recorded.buffer.handle,
                0,
                recorded.size,
                0,
                signal.block.handle if signal is not None else 0,
                signal.offset if signal is not None else 0,
                ticket,
                0,
                0,
            )
            recorded.recording.submitted(self.progress, sequence)
            # not the fence: it refers to this queue, and its record outlives it anyway
            self._flight.append((sequence, recorded))
        self._tail = sequence
        self._longs[self._tail_at] = sequence

    def _release_ended(self) -> int:
        """Lets go of what has ended: its results are read, and its slots may be used again. How many."""
        done = min(self._longs[self._done_at], self._tail)
        # before a slot is used again, and before what ran is released
        self._outcomes.read(done)
        while self._flight and self._flight[0][0] <= done:
            self._flight.popleft()
        return done

    def _sleep(self, timeout_ns: int) -> None:
        with self._waiters_lock:
            self._words[self._waiters_at] += 1
        linux.memory_fence()
        try:
            done = self._longs[self._done_at]
            if done < self._tail:
                linux.futex_wait(self._done_address, done & 0xFFFFFFFF, timeout_ns)
        finally:
            with self._waiters_lock:
                self._words[self._waiters_at] -= 1


def _destroy(
    context: Context, handle: int, flight: deque[tuple[int, object]], progress: Progress, ring: object
) -> None:
    connection = context.connection
    if not connection.is_lost():
        # answered when the engine runs nothing of this queue any more: then everything may go
        connection.request("zeCommandQueueDestroy", msg.QueueDestroy(queue=handle), msg.Ok)
    progress.gone = True
    # not before: this process would forget a segment in which the daemon goes on placing memory
    del ring
    flight.clear()


def check_ordinal(call: str, ordinal: int) -> None:
    """Refuses every queue group but the one that there is."""
    if ordinal:
        raise error(
            call,
            ZeResult.ERROR_INVALID_ARGUMENT,
            "command queue group",
            found=f"ordinal {ordinal}",
            expected="0",
        )
