"""A client's latest steps and submissions, with their sequence numbers and tickets."""

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
    """One step. Times are CLOCK_MONOTONIC in nanoseconds, 0 for future events."""

    number: int
    operation: str
    workload: int = msgspec.field(name="subject")
    sample: int
    seed: int
    death: str = ""
    begun_ns: int = 0
    ended_ns: int = 0


class SubmissionNote(msgspec.Struct, kw_only=True):
    """One inference: its computation, and its submission and queue.

    `pattern` is the number of the pattern that filled its outputs. Several inferences in one list each have
    their own note, with the same submission.
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
        """Note its submission with this fence."""
        self.queue, self.sequence, self.ticket = fence.queue, fence.last, fence.ticket
        self.submitted_ns = time.monotonic_ns()


class Journal:
    """The latest steps and submissions of one client process."""

    def __init__(self, client: int, incarnation: int) -> None:
        self.steps: deque[StepNote] = deque(maxlen=_STEPS)
        self.submissions: deque[SubmissionNote] = deque(maxlen=_SUBMISSIONS)
        self._client = client
        # distinct from the numbers of this client's previous process
        self._number = incarnation << 16

    def begin(self, step: Step) -> None:
        """Note the begin of a step."""
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
        """Note its success."""
        self.steps[-1].ended_ns = time.monotonic_ns()

    def fed(self, model: str, sample: int, inference: int) -> tuple[Pattern, SubmissionNote]:
        """Note that inference `inference` of a sample has its inputs; return the pattern for its outputs."""
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
        """Return the inference whose outputs had this pattern, if recent enough."""
        return next((note for note in self.submissions if note.pattern == number), None)
