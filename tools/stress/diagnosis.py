"""Diagnoses a wrong result while its state still exists: makes a `Report`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from softnpu.driver import CommandQueue, Fence, ZeError
from softnpu.driver.description import FenceState, QueueState
from softnpu.emulator.interface.messages import EngineStatus
from softnpu.tools.stress.checking import Finding, Output
from softnpu.tools.stress.client_session import Session
from softnpu.tools.stress.failure_report import Difference, Leftover, OutputReport, Report
from softnpu.tools.stress.journal import Journal
from softnpu.tools.stress.patterns import Pattern, patterns_in
from softnpu.tools.stress.plan import Step
from softnpu.tools.stress.similar_results import similar_results
from softnpu.tools.stress.workloads import Samples, largest_difference

_FIRST: Final = 8
_LATER_S: Final = 1.0
_LOOK_S: Final = 0.001


class Diagnosis:
    """A client's own state when it has found something."""

    def __init__(self, seed: int, client: int, incarnation: int, step: Step | None, session: Session) -> None:
        self.seed = seed
        self.client = client
        self.incarnation = incarnation
        self.step = step
        self.session = session
        self.trouble: list[str] = []

    def report(self, text: str, finding: Finding | None, workloads: Sequence[Samples]) -> Report:
        """Report everything known. The state of queues and fence is read first."""
        found_ns = time.monotonic_ns()
        session, journal = self.session, self.session.journal
        fence = None if finding is None else finding.inference.fence
        queues = self._queues(fence)
        fence_now = self._fence(fence)
        report = Report(
            text=text,
            seed=self.seed,
            client=self.client,
            incarnation=self.incarnation,
            pid=os.getpid(),
            session=session.driver.session,
            daemon_pid=session.driver.daemon_pid,
            step=-1 if self.step is None else self.step.number,
            operation="start" if self.step is None else self.step.operation,
            found_ns=found_ns,
            queues=queues,
            fence=fence_now,
            engines=self._engines(),
            steps=list(journal.steps),
            submissions=list(journal.submissions),
        )
        if finding is not None:
            _tell_finding(report, finding, journal, workloads)
            report.later = _later(finding.outputs, found_ns)
        report.later_ns = time.monotonic_ns()
        report.queues_later, report.fence_later = self._queues(fence), self._fence(fence)
        report.trouble = self.trouble
        return report

    def _queues(self, fence: Fence | None) -> list[QueueState]:
        """Return the session's queues, and the fence's if it is another."""
        queues = [self.session.queue, self.session.other_queue]
        if fence is not None and fence.queue not in queues:
            queues.append(fence.queue)
        return [state for queue in queues if (state := self._queue(queue)) is not None]

    def _queue(self, queue: CommandQueue) -> QueueState | None:
        try:
            return queue.describe()
        except ZeError as error:
            self.trouble.append(str(error))
            return None

    def _fence(self, fence: Fence | None) -> FenceState | None:
        try:
            return None if fence is None else fence.describe()
        except ZeError as error:
            self.trouble.append(str(error))
            return None

    def _engines(self) -> list[EngineStatus]:
        try:
            return list(self.session.driver.status().engines)
        except ZeError as error:
            self.trouble.append(str(error))
            return []


def _tell_finding(report: Report, finding: Finding, journal: Journal, workloads: Sequence[Samples]) -> None:
    inference = finding.inference
    report.model, report.sample = inference.workload.name, inference.sample
    report.inference, report.in_place = inference.step, inference.in_place
    report.when, report.submission = finding.when.removeprefix(", "), inference.note
    report.outputs = [
        _output(output, inference.pattern, inference.in_place, journal, workloads)
        for output in finding.outputs
    ]


def _output(
    output: Output, pattern: Pattern, in_place: bool, journal: Journal, workloads: Sequence[Samples]
) -> OutputReport:
    expected, result = output.expected, output.found
    wrong = np.flatnonzero(output.differs())
    untouched = pattern.untouched_in(output.raw)
    # neither inputs nor in-place states were filled with the pattern
    filled = output.what.startswith("output") or (output.what.startswith("state") and not in_place)
    return OutputReport(
        what=output.what,
        name=output.block.name,
        shape=list(expected.shape),
        element_type=str(expected.dtype),
        memory=output.block.handle,
        offset=output.block.offset,
        numbers=expected.size,
        wrong=len(wrong),
        largest=f"{largest_difference(result, expected):g}",
        first=[_difference(output, int(index)) for index in wrong[:_FIRST]],
        last=_index(output, int(wrong[-1])),
        written=_extent_written(untouched) if filled else "",
        unwritten_bytes=int(np.count_nonzero(untouched)) if filled else 0,
        unwritten=_ranges(untouched)[:_FIRST] if filled else [],
        zeros=not np.any(result),
        equals=similar_results(output, workloads),
        leftovers=[
            Leftover(
                client=other.client,
                pattern=other.number,
                bytes=8 * count,
                note=journal.of_pattern(other.number) if other.client == pattern.client else None,
            )
            for other, count in patterns_in(output.raw).items()
            if other != pattern
        ],
    )


def _difference(output: Output, index: int) -> Difference:
    return Difference(
        index=_index(output, index),
        found=str(output.found.reshape(-1)[index]),
        expected=str(output.expected.reshape(-1)[index]),
    )


def _index(output: Output, index: int) -> list[int]:
    return [int(at) for at in np.unravel_index(index, output.expected.shape)]


def _extent_written(untouched: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> str:
    if untouched.all():
        return "untouched"
    return "partly" if untouched.any() else "fully"


def _ranges(marked: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _later(outputs: Sequence[Output], found_ns: int) -> str:
    """Report whether the memory becomes right later: then completion was reported too early."""
    if not outputs:
        return ""
    before = [output.block.view.tobytes() for output in outputs]
    end = time.monotonic() + _LATER_S
    while time.monotonic() < end:
        if all(output.is_right_now() for output in outputs):
            return f"right {(time.monotonic_ns() - found_ns) / 1e6:.1f} ms later: its end was told too early"
        time.sleep(_LOOK_S)  # the device sends no notification of writes
    after = [output.block.view.tobytes() for output in outputs]
    if before != after or any(output.raw != raw for output, raw in zip(outputs, after, strict=True)):
        return f"written again meanwhile, and still wrong {_LATER_S:g} s later"
    return f"still the same {_LATER_S:g} s later"
