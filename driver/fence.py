"""`ze_fence_handle_t`: signalled when the submissions of one call have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver.description import FenceState, describe_fence
from softnpu.driver.handle import Handle
from softnpu.driver.submissions import FencedExecution
from softnpu.driver.waiting import FOREVER, wait
from softnpu.emulator.common import failpoints

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue


class Fence(Handle):
    """A fence of one queue. A wait on one that was never submitted returns not ready at once."""

    def __init__(self, queue: CommandQueue, signalled: bool) -> None:
        self._queue = queue
        self._block, self._offset = queue.context._allocate_fence("zeFenceCreate")
        self._record = self._block.fence(self._offset)
        self._place = self._block.handle, self._offset, self._record.address
        self._execution = FencedExecution(self._record, queue._progress)  # of the last call with this fence
        self._signalled = signalled  # by the host: created signalled, or submitted with empty lists
        self._register(
            queue,
            queue.context._connection,
            queue.context._free_fence,
            self._block,
            self._offset,
            self._record,
        )

    @property
    def queue(self) -> CommandQueue:
        """The queue of this fence."""
        return self._queue

    def query_status(self) -> bool:
        """`zeFenceQueryStatus`: True for SUCCESS, False for NOT_READY. Raises as `host_synchronize`."""
        return self._wait("zeFenceQueryStatus", 0)

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeFenceHostSynchronize`: wait for the end; False (NOT_READY) on time-out.

        Raises `ZeError` with the result of its first failed submission, and with ERROR_DEVICE_LOST when the
        daemon is gone.
        """
        return self._wait("zeFenceHostSynchronize", timeout_ns)

    def cancel(self) -> None:
        """Cancel the submission of this fence: it does not begin, or ends early.

        Not a call of Level Zero. Of several command lists submitted together, this cancels the last one. A
        wait for an event ends, a list ends after the running inference, a long inference at a layer boundary.
        The fence is then signalled with ERROR_NOT_AVAILABLE.
        """
        self._check("cancel")
        if self._execution.ticket:
            self._record.cancel(self._execution.ticket)
            self._queue.context._ring_doorbell()

    def reset(self) -> None:
        """`zeFenceReset`: reset the fence. Work in flight stays attached."""
        self._check("zeFenceReset")
        self._signalled = False
        execution = self._execution
        if execution.is_over():
            self._record.arm(0)
            self._execution = FencedExecution(
                self._record, self._queue._progress, first=execution.first, last=execution.last
            )

    def describe(self) -> FenceState:
        """Return a snapshot of its record and of its last call's submissions. Not a call of Level Zero."""
        self._check("Fence.describe")
        execution, block = self._execution, self._block
        return describe_fence(
            self._queue.handle,
            block.handle,
            self._offset,
            block.mapping.buffer,
            block.offset + self._offset,
            (execution.ticket, execution.first, execution.last),
        )

    def _signal(self) -> None:
        """Signal the fence from the host: there is nothing to run. The real driver does the same."""
        # at once, in the eyes of a signal handler that raises: nobody looks at the record afterwards
        self._execution, self._signalled = FencedExecution(self._record, self._queue._progress), True
        self._record.arm(0)

    def _owner_destroyed(self) -> None:
        self._queue.context._free_fence(self._block, self._offset, self._record)

    def _wait(self, call: str, timeout_ns: int) -> bool:
        self._check(call)
        record, queue, execution = self._record, self._queue, self._execution
        last = execution.last
        if not execution.ticket:
            if last and not self._signalled:
                queue._check_alive(call, last)  # reset since it ended
            return self._signalled
        connection = queue.context._connection
        over, sleep, poll, doze = execution.is_over, execution.sleep, execution.poll, execution.doze
        if not wait(call, over, sleep, timeout_ns, connection, queue.spin, poll, doze):
            return False
        if failpoints.active is not None:
            failpoints.hit("client.completing")
        # the device signals the fence before it counts the submission as ended
        if record.is_signalled(execution.ticket):
            # if resubmitted meanwhile, the record may already hold the later submission's result
            if record.result or execution.first != last or self._execution is not execution:
                queue._raise_failure(call, execution)
            return True
        # over without a signal: resubmitted since, skipped in a lost ring, or the queue is destroyed
        queue._check_alive(call, last)
        return False
