"""`ze_fence_handle_t`: tells when the submissions of one call have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver.description import FenceState, describe_fence
from softnpu.driver.handle import Handle
from softnpu.driver.outcomes import Execution
from softnpu.driver.waiting import FOREVER, wait
from softnpu.emulator.common import failpoints

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue

_NOTHING = Execution(0, 0, 0)


class Fence(Handle):
    """A fence of one queue. Never submitted: not ready at once, whatever the time-out."""

    def __init__(self, queue: CommandQueue, signalled: bool) -> None:
        self._queue = queue
        self.block, self.offset = queue.context.take_fence("zeFenceCreate")
        self._record = self.block.fence(self.offset)
        self._execution = _NOTHING  # what it was given to last
        self._signalled = signalled  # by the host: created so, or given to lists without commands
        self._owns(
            queue, queue.context.connection, queue.context.give_fence, self.block, self.offset, self._record
        )

    @property
    def queue(self) -> CommandQueue:
        """The queue that this fence belongs to."""
        return self._queue

    def query_status(self) -> bool:
        """`zeFenceQueryStatus`: True for SUCCESS, False for NOT_READY. Raises as `host_synchronize`."""
        return self._wait("zeFenceQueryStatus", 0)

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeFenceHostSynchronize`: waits for the end; False (NOT_READY) when the time has passed.

        Raises `ZeError` with the result of the first of its submissions that failed, and with
        ERROR_DEVICE_LOST when the daemon is gone.
        """
        return self._wait("zeFenceHostSynchronize", timeout_ns)

    def cancel(self) -> None:
        """Asks that the submission of this fence is not begun, or ends early.

        Not a call of Level Zero. Of several command lists that were submitted together it is the last one. A
        wait for an event ends, a list ends behind the inference that runs, a long inference at the border of
        a layer. The fence is signalled with ERROR_NOT_AVAILABLE then.
        """
        self.check("cancel")
        if self._execution.ticket:
            self._record.cancel(self._execution.ticket)
            self._queue.context.ring_doorbell()

    def reset(self) -> None:
        """`zeFenceReset`: not signalled from now on. Work in flight stays attached."""
        self.check("zeFenceReset")
        self._signalled = False
        execution = self._execution
        if self._record.is_signalled(execution.ticket) or self._queue.is_over(execution.last):
            self._record.arm(0)
            self._execution = Execution(0, execution.first, execution.last)

    def describe(self) -> FenceState:
        """Its record as it is now, and what it was given to last. Not a call of Level Zero."""
        self.check("Fence.describe")
        execution, block = self._execution, self.block
        return describe_fence(
            self._queue.handle,
            block.handle,
            self.offset,
            block.mapping.buffer,
            block.offset + self.offset,
            (execution.ticket, execution.first, execution.last),
        )

    def arm(self, execution: Execution) -> None:
        """The submissions of this execution signal it when the last of them has ended."""
        self._signalled = False
        self._execution = execution
        self._record.arm(execution.ticket)

    def signal_now(self) -> None:
        """There was nothing to run: signalled at once, as on the real driver."""
        self._record.arm(0)
        self._execution = _NOTHING
        self._signalled = True

    def _forget(self) -> None:
        self._queue.context.give_fence(self.block, self.offset, self._record)

    def _wait(self, call: str, timeout_ns: int) -> bool:
        self.check(call)
        record, queue, execution = self._record, self._queue, self._execution
        ticket, last = execution.ticket, execution.last
        if not ticket:
            if last and not self._signalled:
                queue.check_alive(call, last)  # reset since it ended
            return self._signalled
        connection = queue.context.connection

        def over() -> bool:
            return record.is_signalled(ticket) or queue.is_over(last)

        def sleep(timeout_ns: int) -> None:
            record.sleep(ticket, timeout_ns)

        if not wait(call, over, sleep, timeout_ns, connection, queue.spin):
            return False
        if failpoints.active is not None:
            failpoints.hit("client.completing")
        # the device signals the fence before it counts the submission as ended
        if record.is_signalled(ticket):
            result = record.result
            # given to another submission meanwhile, the fence may have the result of that one already
            if result or execution.first != last or self._execution is not execution:
                queue.raise_failure(call, execution)
            return True
        # over without a signal: given to another submission since, passed over in a broken ring, or the queue
        # is destroyed
        queue.check_alive(call, last)
        return False
