"""`ze_command_queue_handle_t`: the driver's end of a ring of submissions."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from softnpu.driver.command_list import CommandList
from softnpu.driver.description import QueueState, describe_ring
from softnpu.driver.errors import ZeError, check_type, error, invalid_argument, invalid_size
from softnpu.driver.fence import Fence
from softnpu.driver.handle import Handle
from softnpu.driver.submissions import FencedExecution, QueueProgress, Submission, SubmissionResults
from softnpu.driver.submit_calls import CALLS
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.spin import TurboBudget
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.interface.ring import DriverRing

if TYPE_CHECKING:
    from softnpu.driver.block import Block
    from softnpu.driver.context_base import ContextBase


class QueueMode(enum.IntEnum):
    """`ze_command_queue_mode_t`."""

    DEFAULT = 0
    SYNCHRONOUS = 1
    ASYNCHRONOUS = 2


_MOST_KEPT = 32  # submissions, ended or not, of one and the same recording
_SYNCHRONOUS = QueueMode.SYNCHRONOUS
"""A plain name: reading an enumeration member takes 50 ns."""


class CommandQueue(Handle):
    """A queue runs submissions in order; `Context.create_command_queue` explains `priority` and `turbo`."""

    def __init__(self, context: ContextBase, priority: str, turbo: bool, slots: int, mode: QueueMode) -> None:
        check_type("zeCommandQueueCreate", "command queue, slots", slots, int)
        self.context = context
        self._connection = context._connection
        self.mode = mode
        request = msg.QueueCreate(context=context.handle, slots=slots, priority=priority, turbo=turbo)
        self.handle: int
        self.handle, block = context._memory.create_queue(
            "zeCommandQueueCreate", request, records.ring_size(slots)
        )
        self.spin = TurboBudget() if turbo else new_budget()
        self._ring = DriverRing(block.mapping, block.offset, slots)
        self._lock = threading.Lock()
        self._tail = 0
        # what the device may still access: released when the submission has ended
        self._in_flight: deque[tuple[int, Submission]] = deque()
        self._alike_since = 0  # what is in flight from this submission on is one and the same recording
        self._progress = QueueProgress(self._ring)
        self._results = SubmissionResults(self._ring)
        self._register(
            context,
            context._connection,
            _destroy,
            context,
            self.handle,
            self._in_flight,
            self._progress,
            block,
        )

    # ------------------------------------------------------------ submitting

    def execute_command_lists(self, lists: Sequence[CommandList], fence: Fence | None = None) -> None:
        """`zeCommandQueueExecuteCommandLists`: submit closed lists; the last one signals the fence.

        If there are more lists than slots, the rest is submitted as slots become free. Lists behind a failed
        one still run; the fence has the result of the first failure. If all lists are empty it is signalled
        at once, regardless of work in flight (as on the real driver).
        Raises `ZeError`: INVALID_SIZE without lists, UNINITIALIZED for an open list, INVALID_ARGUMENT for one
        of another driver, INVALID_SYNCHRONIZATION_OBJECT for another queue's fence, DEVICE_LOST when the
        daemon is gone.
        """
        call = "zeCommandQueueExecuteCommandLists"
        self._check(call)
        self._connection.check(call)
        # the usual case without the general checks: one list that this queue has executed before, and a fence
        if type(fence) is Fence and fence._queue is self and type(lists) is list and len(lists) == 1:
            commands = lists[0]
            if type(commands) is CommandList and commands._last_queue is self and commands._closed:
                recorded = commands._submission
                is_usable = commands._alive and fence._alive and self.mode is not _SYNCHRONOUS
                if recorded is not None and is_usable:
                    self._submit_part(call, [recorded], fence, self._begin(fence))
                    return
        if not lists:
            raise invalid_size(call, "command lists", found="none", expected="at least one")
        for entry in lists:
            check_type(call, "command list", entry, CommandList)
            self.context._check_session(call, "command list", entry.context._connection)
        own = fence
        if fence is not None:
            check_type(call, "fence", fence, Fence)
            fence._check(call)
            # as the real driver does: the work runs, then the foreign fence is an error
            own = fence if fence.queue is self else None
        filled = [recorded for entry in lists if (recorded := entry._prepare(call, self)) is not None]
        if filled:
            self._submit(call, filled, own)
        elif own is not None:
            own._signal()  # only empty lists: nothing runs
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

    def _submit_one(self, call: str, recorded: Submission) -> None:
        """Submit the command buffer of an immediate list."""
        self._submit(call, [recorded], None)
        if self.mode is QueueMode.SYNCHRONOUS:
            self.synchronize()

    def set_workload_type(self, background: bool) -> None:
        """`pfnSetWorkloadType`: run later submissions below every priority (background), or as before."""
        call = "pfnSetWorkloadType"
        self._check(call)
        request = msg.QueueWorkload(queue=self.handle, background=background)
        self.context._connection.request(call, request, msg.Ok)

    def _submit(self, call: str, filled: list[Submission], fence: Fence | None) -> None:
        execution = None if fence is None else self._begin(fence)
        slots = self._ring.slots
        while len(filled) > slots:
            self._submit_part(call, filled[:slots], None, execution)
            filled = filled[slots:]
        self._submit_part(call, filled, fence, execution)

    def _begin(self, fence: Fence) -> FencedExecution:
        """Return an execution with a new ticket, whose submissions are still to come."""
        return FencedExecution(fence._record, self._progress, next(self.context._tickets))

    def _submit_part(
        self, call: str, filled: list[Submission], fence: Fence | None, execution: FencedExecution | None
    ) -> None:
        while True:
            with self._lock:
                # a slot is free when the result of its last use was read; a ring with room is filled at once
                last_use = self._tail + len(filled) - self._ring.slots
                has_room = self._results.last_read >= last_use
                if has_room or self._release_ended() >= last_use:
                    try:
                        if self._fill_slots(filled, fence, execution):
                            self.context._ring_doorbell()
                    except BaseException:  # of a signal handler
                        self._settle(filled, fence, execution)
                        raise
                    # release ended work while the device begins; a destroyed ring's memory may have been
                    # reused
                    if has_room and not self._progress.destroyed and self._is_time_to_release():
                        self._release_ended()
                    return
            self._wait_until_over(call, last_use, FOREVER)
            self._check(call)

    def synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeCommandQueueSynchronize`: wait for all submissions; False (NOT_READY) on time-out.

        Raises `ZeError` when the queue is lost, with the oldest unreported failure, and with DEVICE_LOST when
        the daemon is gone. Each failure is reported once.
        """
        call = "zeCommandQueueSynchronize"
        self._check(call)
        tail = self._tail
        done = self._wait_until_over(call, tail, timeout_ns)
        if done:
            with self._lock:
                self._release_ended()
                unreported = self._results.take_unreported(tail)
            self._check_alive(call, tail)
            if unreported is not None:
                failure, more = unreported
                raise self._error(call, failure.result, failure.sequence, more)
        return done

    def create_fence(self, signalled: bool = False) -> Fence:
        """`zeFenceCreate`."""
        self._check("zeFenceCreate")
        return Fence(self, signalled)

    def _owner_destroyed(self) -> None:
        self._progress.end()

    @property
    def lost(self) -> bool:
        """Whether the queue is lost: every later submission fails with DEVICE_LOST."""
        return self._ring.is_lost

    def describe(self) -> QueueState:
        """Return a snapshot of the ring: submissions in flight and the last ended ones.

        Not a call of Level Zero.
        """
        self._check("CommandQueue.describe")
        return describe_ring(self.handle, self._tail, self._ring)

    # ------------------------------------------------------------ results and slots

    def _check_alive(self, call: str, sequence: int) -> None:
        """Raise `ZeError`: DEVICE_LOST when the queue is lost, INVALID_NULL_HANDLE when it is destroyed."""
        self._check(call)
        if self.lost:
            raise self._error(call, ZeResult.ERROR_DEVICE_LOST, sequence)

    def _raise_failure(self, call: str, execution: FencedExecution) -> None:
        """Raise `ZeError` for the first failed submission of an ended execution, if any."""
        with self._lock:
            if self._results.last_read < execution.last:
                self._check(call)  # a destroyed queue's ring may have been reused
                # the fence is signalled shortly before the ring counts its submission as ended
                self._results.read(execution.last)
            failure = execution.failure
            if failure is None:
                return
            self._results.reported(failure.sequence)
        raise self._error(call, failure.result, failure.sequence)

    def _error(self, call: str, result: int, sequence: int, more: int = 0) -> ZeError:
        """Return the error of a failed submission, with the reason that the engine left in the ring."""
        info = self._ring.failure()
        # the ring holds the reason of the last failure only, but a lost queue has one reason for all
        is_reason = self._ring.failed == sequence or result == ZeResult.ERROR_DEVICE_LOST
        if info is None or info.result != result or not is_reason:
            info = ErrorInfo(result=result, object=f"submission {sequence}", found="it failed")
        if more:
            info = msgspec.structs.replace(info, found=f"{info.found} (and {more} more failed)")
        return ZeError(call, info)

    def _wait_until_over(self, call: str, sequence: int, timeout_ns: int) -> bool:
        """Wait for submission `sequence`; return False on time-out."""
        return wait(
            call,
            lambda: self._progress.is_over(sequence),
            lambda slice_ns: self._ring.sleep(sequence, slice_ns),
            timeout_ns,
            self.context._connection,
            self.spin,
        )

    def _fill_slots(
        self, filled: list[Submission], fence: Fence | None, execution: FencedExecution | None
    ) -> bool:
        """Submit these; the last one signals the fence, if any. Return whether to ring the doorbell.

        A signal handler may raise at any call: until the tail is stored here, nothing counts (`_settle`).
        """
        ring, in_flight, sequence = self._ring, self._in_flight, self._tail
        last = sequence + len(filled)
        if execution is not None:
            self._results.expect(execution, sequence + 1, last)
        for recorded in filled:
            sequence += 1
            recorded.recording.submitted(self._progress, sequence)
            if not in_flight or in_flight[-1][1] is not recorded:
                self._alike_since = sequence
            # not the fence: it refers to this queue, and its record outlives it anyway
            in_flight.append((sequence, recorded))
            if sequence != last:
                ring.fill(sequence, recorded.buffer.handle, recorded.size)
        recorded = filled[-1]
        buffer, size = recorded.buffer.handle, recorded.size
        memory, offset, record, ticket = 0, 0, 0, 0
        if fence is not None and execution is not None:
            (memory, offset, record), ticket = fence._place, execution.ticket
        calls = CALLS if failpoints.active is None else None
        if calls is None:
            ring.fill(last, buffer, size, memory, offset, ticket)
        doorbell = self.context._doorbell
        # plain stores: a signal handler runs when a call into C ends, or a function in Python begins
        if fence is not None and execution is not None:
            fence._signalled, fence._execution = False, execution
        self._tail = last
        if calls is not None:
            return calls.submit(
                ring.address, ring.slots, last, buffer, size, memory, offset, ticket, record, doorbell
            )
        if fence is not None:
            fence._record.arm(ticket)
        ring.publish(last)
        if failpoints.active is not None:
            failpoints.hit("client.submit")
        return ring.needs_doorbell()

    def _settle(
        self, filled: list[Submission], fence: Fence | None, execution: FencedExecution | None
    ) -> None:
        """After an exception in `_fill_slots`: submit what counts, and forget what does not.

        A sequence number that does not count is used again. What expects its result is harmless: a fence has
        that execution only if it counts.
        """
        tail, in_flight = self._tail, self._in_flight
        if not self._progress.destroyed:  # a destroyed ring's memory may have been reused
            if fence is not None and execution is not None and fence._execution is execution and fence._alive:
                fence._record.arm(execution.ticket)
            self._ring.publish(tail)
            self.context._ring_doorbell()
        while in_flight and in_flight[-1][0] > tail:
            in_flight.pop()
        for recorded in filled:
            recorded.recording.submitted(self._progress, tail)  # if earlier: it has ended when this one has

    def _is_time_to_release(self) -> bool:
        """Return whether ended work may hold what the last submission does not, or there is much of it.

        Not each time, as it takes half a microsecond: the device has just written what is read for it.
        """
        in_flight = self._in_flight
        if not in_flight:
            return False  # destroyed by another thread
        return in_flight[0][0] < self._alike_since or len(in_flight) > _MOST_KEPT

    def _release_ended(self) -> int:
        """Read the results of ended submissions and release what they used; return how many have ended."""
        completed = min(self._ring.completed, self._tail)
        # before a slot is reused and ended work is released
        self._results.read(completed)
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= completed:
            in_flight.popleft()
        return completed


def _destroy(
    context: ContextBase,
    handle: int,
    in_flight: deque[tuple[int, Submission]],
    progress: QueueProgress,
    block: Block,
) -> None:
    progress.stop()
    connection = context._connection
    if not connection.is_lost():
        # answered when the engine runs nothing of this queue any more: then everything may be freed
        connection.request("zeCommandQueueDestroy", msg.QueueDestroy(queue=handle), msg.Ok)
    progress.end()
    # not before: this process would unmap a segment in which the daemon still allocates memory
    del block
    in_flight.clear()


def check_ordinal(call: str, ordinal: int) -> None:
    """Reject every queue group but the only one."""
    if ordinal:
        raise invalid_argument(call, "command queue group", found=f"ordinal {ordinal}", expected="0")
