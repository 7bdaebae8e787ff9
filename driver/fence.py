"""`ze_fence_handle_t`: tells when a submission of one queue has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver.handle import Handle
from softnpu.driver.memory import Block
from softnpu.driver.waiting import FOREVER, wait
from softnpu.emulator.interface import failpoints
from softnpu.emulator.interface.records import SignalState

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue


class Flight:
    """The record of a fence, and the submission that signals it: what outlives the fence itself."""

    __slots__ = ("block", "offset", "sequence")

    def __init__(self, block: Block, offset: int) -> None:
        self.block = block
        self.offset = offset
        self.sequence = 0


class Fence(Handle):
    """A fence of one queue. Never submitted: not ready at once, whatever the time-out."""

    def __init__(self, queue: CommandQueue, signalled: bool) -> None:
        self._queue = queue
        self.block, self.offset = queue.context.take_signal("zeFenceCreate")
        self._signal = self.block.signal(self.offset)
        self._signal.arm(SignalState.HOST_SIGNALLED if signalled else SignalState.INITIAL, 0)
        self._flight = Flight(self.block, self.offset)
        self._owns(queue, queue.context.connection, queue.retire, self._flight)

    @property
    def queue(self) -> CommandQueue:
        """The queue that this fence belongs to."""
        return self._queue

    def query_status(self) -> bool:
        """`zeFenceQueryStatus`: True for SUCCESS, False for NOT_READY. Raises as `host_synchronize`."""
        return self._wait("zeFenceQueryStatus", 0)

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeFenceHostSynchronize`: waits for the end; False (NOT_READY) when the time has passed.

        Raises `ZeError` with the result of the submission if it failed, and with ERROR_DEVICE_LOST when
        the daemon is gone.
        """
        return self._wait("zeFenceHostSynchronize", timeout_ns)

    def cancel(self) -> None:
        """Asks that the submission of this fence is not begun, or ends early.

        Not a call of Level Zero. A wait for an event ends, a list ends behind the inference that runs, a long
        inference at the border of a layer. The fence is signalled with ERROR_NOT_AVAILABLE then.
        """
        self.check("cancel")
        self._signal.cancel()
        self._queue.context.ring_doorbell()

    def reset(self) -> None:
        """`zeFenceReset`: not signalled from now on."""
        self.check("zeFenceReset")
        # work in flight stays attached; what has ended must not signal again after an engine reset. The
        # device signals a fence a moment before it counts its submission as ended: either tells
        sequence = self._flight.sequence
        ended = self._signal.signalled or self._queue.is_over(sequence)
        self._signal.arm(SignalState.HOST_RESET, 0 if ended else sequence)

    def arm(self, sequence: int) -> None:
        """Submission `sequence` of the queue will signal this fence."""
        self._flight.sequence = sequence
        self._signal.arm(SignalState.HOST_RESET, sequence)

    def signal_now(self) -> None:
        """There was nothing to run: signalled at once."""
        self._flight.sequence = 0
        self._signal.host_signal()

    def _wait(self, call: str, timeout_ns: int) -> bool:
        self.check(call)
        signal, queue, sequence = self._signal, self._queue, self._flight.sequence
        if not sequence:
            return signal.signalled
        connection = queue.context.connection

        def over() -> bool:
            return signal.signalled or queue.is_over(sequence)

        if not wait(call, over, signal.sleep, timeout_ns, connection, queue.spin):
            return False
        if failpoints.active is not None:
            failpoints.hit("client.completing")
        # the device signals the fence before it counts the submission as ended
        if signal.signalled:
            if signal.result:
                raise queue.failure(call, signal.result, sequence)
            return True
        # over without a signal: reset since then, passed over in a broken ring, or the queue is destroyed
        queue.check_alive(call, sequence)
        return False
