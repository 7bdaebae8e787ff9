"""Submissions of a queue: their resources, progress and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from softnpu.driver import endings
from softnpu.driver.submit_calls import CALLS
from softnpu.emulator.interface.ring import DriverRing
from softnpu.emulator.interface.shared import FenceRecord

if TYPE_CHECKING:
    from softnpu.driver.block import Block

_MOST_KEPT = 1024  # failures that no wait has reported yet
_FEW_QUEUES = 8
_SLICE_NS = 250_000_000  # then C++ looks for what nothing wakes it for, a signal to another thread say
_LONGEST_SLEEP_NS = 1_000_000_000  # then Python looks for anything else


class QueueProgress:
    """The progress of a queue; valid beyond its end.

    A command list, an event or a fence may read it after the queue was destroyed or garbage-collected (which
    destroys it a little later): until the device has confirmed that, its submissions may still run.
    """

    __slots__ = ("destroyed", "ring")

    def __init__(self, ring: DriverRing) -> None:
        self.ring: DriverRing | None = ring
        self.destroyed = False
        """Set once nobody waits for its submissions any more."""

    @property
    def gone(self) -> bool:
        """Whether the device has confirmed the destruction: nothing of the queue runs."""
        return self.ring is None

    def stop(self) -> None:
        """Mark the queue as destroyed."""
        self.destroyed = True
        endings.note()

    def end(self) -> None:
        """Mark the queue as gone; its ring is not needed any more."""
        self.stop()
        self.ring = None

    def is_over(self, sequence: int) -> bool:
        """Return whether submission `sequence` has ended, or will not signal its fence: the queue is gone."""
        ring = self.ring
        return ring is None or ring.completed >= sequence or self.destroyed

    def may_run(self, sequence: int) -> bool:
        """Return whether the device may still execute submission `sequence`."""
        ring = self.ring
        return ring is not None and ring.completed < sequence


class Recording:
    """The commands between two resets of a list, and where they were submitted last.

    Lives as long as the list has these commands or a submission of them is in flight; by then the list may
    have been reset, destroyed or collected. It does not keep a queue alive.
    """

    def __init__(self) -> None:
        self._last: dict[QueueProgress, int] = {}
        self._prune_at = _FEW_QUEUES

    def submitted(self, progress: QueueProgress, sequence: int) -> None:
        """Record that submission `sequence` of the queue with this progress executes it."""
        last = self._last
        if progress not in last and len(last) >= self._prune_at:
            for known in list(last):
                if known.gone:
                    last.pop(known, None)
            self._prune_at = max(_FEW_QUEUES, 2 * len(last))  # of 1000 queues each is looked at twice
        last[progress] = sequence

    def in_flight(self) -> bool:
        """Return whether a submission of it may still run."""
        for progress, sequence in list(self._last.items()):
            if progress.may_run(sequence):
                return True
            if progress.gone:
                self._last.pop(progress, None)
        return False


class Submission(NamedTuple):
    """What a queue executes: `size` bytes of commands, and what must stay alive meanwhile."""

    buffer: Block
    size: int
    used: object
    recording: Recording


class Failure(NamedTuple):
    """A failed submission, and its `ze_result_t`."""

    sequence: int
    result: int


class FencedExecution(msgspec.Struct, eq=False):
    """The submissions of one call with a fence, from `first` to `last`, and the ticket that signals it.

    Ticket 0: nothing signals the fence. Submissions of other calls may lie between those of a long one.
    `failure`: the first one, once their results were read.
    """

    record: FenceRecord
    progress: QueueProgress
    ticket: int = 0
    first: int = 0
    last: int = 0
    failure: Failure | None = None

    def is_over(self) -> bool:
        """Return whether a wait for the fence ends."""
        return self.record.is_signalled(self.ticket) or self.progress.is_over(self.last)

    def poll(self, limit_ns: int) -> int:
        """Poll for at most `limit_ns` whether a wait for the fence ends; 2: polling is in vain."""
        progress = self.progress
        ring = progress.ring
        if CALLS is None or ring is None or progress.destroyed:
            return self.is_over()
        return CALLS.poll(self.record.address, self.ticket, ring.address, self.last, limit_ns)

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until the fence changes, at most `timeout_ns`; the caller checks again."""
        self.record.sleep(self.ticket, timeout_ns)

    def doze(self, timeout_ns: float, slice_ns: int, ended: int, socket: int, life: int) -> None:
        """Sleep until the fence changes, at most `timeout_ns`; the caller checks again.

        It also ends when more has ended in this process than `ended` (`endings`), the peer of `socket` is
        gone, or the submission has ended without the fence. Without C++ it lasts `slice_ns`. With it, the
        first two end it at once, by the word `life`; or else it looks now and then.
        """
        ring = self.progress.ring
        if CALLS is None or ring is None or socket < 0:
            self.sleep(int(min(timeout_ns, slice_ns)))
            return
        CALLS.sleep(
            self.record.address,
            self.ticket,
            ring.address,
            self.last,
            int(min(timeout_ns, _LONGEST_SLEEP_NS)),
            _SLICE_NS,
            endings.ADDRESS,
            ended,
            socket,
            life,
        )


class SubmissionResults:
    """The results of one queue, read before their slots are reused. Guarded by the queue's lock."""

    def __init__(self, ring: DriverRing) -> None:
        self._ring = ring
        self.last_read = 0
        """The results up to this submission were read."""
        self._unreported: dict[int, int] = {}
        self._more = 0  # failures beyond the kept ones
        self._executions: dict[int, FencedExecution] = {}  # by each of their submissions

    def expect(self, execution: FencedExecution, first: int, last: int) -> None:
        """Assign the submissions from `first` to `last` to this execution; it records the first failure."""
        execution.first = execution.first or first
        execution.last = last
        if first == last:
            self._executions[first] = execution
            return
        for sequence in range(first, last + 1):
            self._executions[sequence] = execution

    def read(self, completed: int) -> None:
        """Read the results of all submissions up to `completed`, which have ended."""
        ring, executions, sequence = self._ring, self._executions, self.last_read
        while sequence < completed:
            sequence += 1
            # a signal handler may raise at any call: then this submission, or the last one, is read again
            if result := ring.result(sequence):
                self._note(sequence, result, executions.get(sequence))
            self.last_read = sequence
            executions.pop(sequence, None)

    def _note(self, sequence: int, result: int, execution: FencedExecution | None) -> None:
        if execution is not None and execution.failure is None:
            execution.failure = Failure(sequence, result)
        if len(self._unreported) < _MOST_KEPT:
            self._unreported[sequence] = result
        else:
            self._more += 1

    def reported(self, sequence: int) -> None:
        """Mark this failure as reported to the program."""
        self._unreported.pop(sequence, None)

    def take_unreported(self, last: int) -> tuple[Failure, int] | None:
        """Return the oldest unreported failure up to `last`, and how many more there are.

        All of them count as reported from now on.
        """
        chosen = [sequence for sequence in self._unreported if sequence <= last]
        if not chosen:
            return None
        first = Failure(chosen[0], self._unreported[chosen[0]])
        for sequence in chosen:
            del self._unreported[sequence]
        more, self._more = len(chosen) - 1 + self._more, 0
        return first, more
