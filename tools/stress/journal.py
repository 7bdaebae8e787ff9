"""What a client has done last: its steps, and its submissions with their sequence numbers and tickets."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import msgspec

from softnpu.driver.description import FenceState
from softnpu.tools.stress.patterns import Pattern
from softnpu.tools.stress.plan import Step

_STEPS: Final = 32
_SUBMISSIONS: Final = 96


class StepNote(msgspec.Struct, kw_only=True):
    """One step. Times are CLOCK_MONOTONIC in nanoseconds, 0 for what has not come yet."""

    number: int
    operation: str
    workload: int = msgspec.field(name="subject")
    sample: int
    seed: int
    death: str = ""
    begun_ns: int = 0
    ended_ns: int = 0


class SubmissionNote(msgspec.Struct, kw_only=True):
    """One inference: what it computes, and which submission of which queue it is.

    `pattern` is the number of the pattern that its outputs had before. Of several inferences in one list each
    has a note of its own, with the same submission.
    """

    step: int
    model: str
    sample: int
    inference: int
    pattern: int
    fed_ns: int
    queue: int = 0
    sequence: int = 0
    ticket: int = 0
    submitted_ns: int = 0
    checked_ns: int = 0

    def submitted(self, fence: FenceState) -> None:
        """It was submitted with a fence that is as described."""
        self.queue, self.sequence, self.ticket = fence.queue, fence.last, fence.ticket
        self.submitted_ns = time.monotonic_ns()


class Journal:
    """The last steps and submissions of one client process."""

    def __init__(self, client: int, incarnation: int) -> None:
        self.steps: deque[StepNote] = deque(maxlen=_STEPS)
        self.submissions: deque[SubmissionNote] = deque(maxlen=_SUBMISSIONS)
        self._client = client
        # not those of the process that had this place before
        self._number = incarnation << 16

    def begin(self, step: Step) -> None:
        """A step begins."""
        note = StepNote(
            number=step.number,
            operation=step.operation,
            workload=step.workload,
            sample=step.sample,
            seed=step.seed,
            death="" if step.death is None else str(step.death),
            begun_ns=time.monotonic_ns(),
        )
        self.steps.append(note)

    def end(self) -> None:
        """It has ended well."""
        self.steps[-1].ended_ns = time.monotonic_ns()

    def fed(self, model: str, sample: int, inference: int) -> tuple[Pattern, SubmissionNote]:
        """The inputs of inference `inference` of a sample are written: the pattern for its outputs."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        note = SubmissionNote(
            step=self.steps[-1].number if self.steps else -1,
            model=model,
            sample=sample,
            inference=inference,
            pattern=self._number,
            fed_ns=time.monotonic_ns(),
        )
        self.submissions.append(note)
        return Pattern(self._client, self._number), note

    def of_pattern(self, number: int) -> SubmissionNote | None:
        """The inference whose outputs had this pattern, if it is not too long ago."""
        return next((note for note in self.submissions if note.pattern == number), None)
