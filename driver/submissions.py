"""Submissions of a queue: what they use, how far the queue has come, how they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from softnpu.emulator.interface.ring import DriverRing
from softnpu.emulator.interface.shared import FenceRecord

if TYPE_CHECKING:
    from softnpu.driver.block import Block

_MOST_KEPT = 1024  # failures that no wait has reported yet


class QueueProgress:
    """How far a queue has come; also valid after its end.

    A command list, an event or a fence may read it after the queue was destroyed, or collected by Python,
    which destroys it a little later: until the device has confirmed that, its submissions may still run.
    """

    __slots__ = ("_ring", "destroyed")

    def __init__(self, ring: DriverRing) -> None:
        self._ring: DriverRing | None = ring
        self.destroyed = False
        """Nobody waits for its submissions any more."""

    @property
    def gone(self) -> bool:
        """Whether the device has confirmed the destruction: nothing of it runs."""
        return self._ring is None

    def end(self) -> None:
        """Note that the queue is gone; its ring is not needed any more."""
        self.destroyed = True
        self._ring = None

    def is_over(self, sequence: int) -> bool:
        """Whether submission `sequence` has ended, or nobody signals its fence because the queue is gone."""
        ring = self._ring
        return ring is None or ring.completed >= sequence or self.destroyed

    def may_run(self, sequence: int) -> bool:
        """Whether the device may still execute submission `sequence`."""
        ring = self._ring
        return ring is not None and ring.completed < sequence


class Recording:
    """The commands between two resets of a list: where they were submitted last.

    It lives as long as the list has these commands or a submission of them is in flight: by then the list may
    have been reset, destroyed or collected. It does not keep a queue alive.
    """

    def __init__(self) -> None:
        self._last: dict[QueueProgress, int] = {}

    def submitted(self, progress: QueueProgress, sequence: int) -> None:
        """Note that submission `sequence` of the queue with this progress executes it."""
        if progress not in self._last:
            for known in list(self._last):
                if known.gone:
                    self._last.pop(known, None)
        self._last[progress] = sequence

    def in_flight(self) -> bool:
        """Whether a submission of it may still run."""
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
    """A submission that failed, and its `ze_result_t`."""

    sequence: int
    result: int


class FencedExecution:
    """The submissions of one call with a fence, `first` and `last` of them, and the ticket that signals it.

    Ticket 0: nothing signals the fence. Those of other calls may lie between the parts of a long one.
    """

    __slots__ = ("_progress", "_record", "failure", "first", "last", "ticket")

    def __init__(
        self, record: FenceRecord, progress: QueueProgress, ticket: int = 0, first: int = 0, last: int = 0
    ) -> None:
        self._record = record
        self._progress = progress
        self.ticket = ticket
        self.first = first
        self.last = last
        self.failure: Failure | None = None
        """The first of them that failed, once their results were read."""

    def is_signalled(self) -> bool:
        """Whether the device has signalled the fence for it."""
        return self._record.is_signalled(self.ticket)

    def is_over(self) -> bool:
        """Whether a wait for the fence ends."""
        return self._record.is_signalled(self.ticket) or self._progress.is_over(self.last)

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until the fence changes, at most `timeout_ns`."""
        self._record.sleep(self.ticket, timeout_ns)


class SubmissionResults:
    """The results of one queue, read before their slots are used again. The queue's lock guards it."""

    def __init__(self, ring: DriverRing) -> None:
        self._ring = ring
        self._read = 0  # results up to here were read
        self._unreported: dict[int, int] = {}
        self._more = 0  # failures beyond those that are kept
        self._executions: dict[int, FencedExecution] = {}  # by each of their submissions

    def expect(self, execution: FencedExecution, first: int, last: int) -> None:
        """The submissions from `first` to `last` belong to this execution, which notes the first failure."""
        execution.first = execution.first or first
        execution.last = last
        if first == last:
            self._executions[first] = execution
            return
        for sequence in range(first, last + 1):
            self._executions[sequence] = execution

    def read(self, completed: int) -> None:
        """Read the results of all submissions up to `completed`, which have ended."""
        if completed <= self._read:
            return
        ring, executions = self._ring, self._executions
        for sequence in range(self._read + 1, completed + 1):
            result = ring.result(sequence)
            execution = executions.pop(sequence, None)
            if not result:
                continue
            if execution is not None and execution.failure is None:
                execution.failure = Failure(sequence, result)
            if len(self._unreported) < _MOST_KEPT:
                self._unreported[sequence] = result
            else:
                self._more += 1
        self._read = completed

    def was_read(self, sequence: int) -> bool:
        """Whether the result of this submission was read."""
        return self._read >= sequence

    def reported(self, sequence: int) -> None:
        """Note that the program has learnt of this failure."""
        self._unreported.pop(sequence, None)

    def take_unreported(self, last: int) -> tuple[Failure, int] | None:
        """The oldest failure up to `last` that was not reported, and how many more there are.

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
