"""The report on a wrong result: its numbers, matching results, work in flight, and concurrent events.

Times are CLOCK_MONOTONIC in nanoseconds, as in fence records and in clients' notes.
"""

from __future__ import annotations

import msgspec

from softnpu.driver.description import FenceState, QueueState
from softnpu.emulator.interface.messages import EngineStatus
from softnpu.tools.stress.journal import StepNote, SubmissionNote


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One wrong number: its place, and both values as text (JSON has neither infinity nor NaN)."""

    index: list[int]
    found: str
    expected: str


class SimilarResult(msgspec.Struct, frozen=True, kw_only=True):
    """A similar result: `share` of all its numbers, `share_of_wrong` of the wrong ones are the same.

    `what` describes it; `model`, `sample`, `inference` identify the expected result, if it is one.
    """

    what: str
    share: float
    share_of_wrong: float
    model: str = ""
    sample: int = -1
    inference: int = -1


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of another inference in a result: the fill of its memory before that one."""

    client: int
    pattern: int
    bytes: int
    note: SubmissionNote | None


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    """One wrong output or state. Shapes in elements; `memory` and `offset`: its place.

    `written`: 'untouched', 'partly' or 'fully'; `unwritten` are at most eight ranges of bytes (start, end)
    that still have their fill. 'written' is empty for an in-place state: it cannot be known.
    """

    what: str
    name: str
    shape: list[int]
    element_type: str
    memory: int
    offset: int
    numbers: int
    wrong: int
    largest: str
    first: list[Difference]
    last: list[int]
    written: str
    unwritten_bytes: int
    unwritten: list[tuple[int, int]]
    zeros: bool
    equals: list[SimilarResult]
    leftovers: list[Leftover]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the run: a kill, a death, an engine's restart, an injected fault."""

    at_ns: int
    what: str


class OtherClient(msgspec.Struct, frozen=True, kw_only=True):
    """Another client's activity when the coordinator heard of the failure."""

    client: int
    pid: int
    step: int
    operation: str
    since_ns: int


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator's additions: the last events, oldest first, and the other clients."""

    told_ns: int
    events: list[Event]
    neighbours: list[OtherClient]


class Report(msgspec.Struct, kw_only=True):
    """The whole report. `queues` and `fence` were read at once, `*_later` after `later`.

    `later` says whether the memory became right by itself, or is still wrong.
    """

    text: str
    seed: int
    client: int
    incarnation: int = msgspec.field(name="life")
    pid: int
    session: int
    daemon_pid: int
    step: int
    operation: str
    found_ns: int
    model: str = ""
    sample: int = -1
    inference: int = -1
    in_place: bool = False
    when: str = ""
    submission: SubmissionNote | None = None
    outputs: list[OutputReport] = []
    later: str = ""
    later_ns: int = 0
    fence: FenceState | None = None
    fence_later: FenceState | None = None
    queues: list[QueueState] = []
    queues_later: list[QueueState] = []
    engines: list[EngineStatus] = []
    trouble: list[str] = []
    steps: list[StepNote] = []
    submissions: list[SubmissionNote] = []
    run: RunContext | None = None

    def encode(self) -> bytes:
        """Encode as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def lines(self) -> list[str]:
        """Return the main facts for a person."""
        lines = [line for output in self.outputs for line in _output_lines(output)]
        if self.later:
            lines.append(self.later)
        if self.submission is not None and self.fence is not None:
            lines.append(_submission_line(self.submission, self.fence, self.queues))
        lines += [
            f"engine {engine.device.index}: pid {engine.engine_pid}, {engine.state},"
            f" {engine.restarts} restarts, {engine.overlapped} inferences begun early"
            for engine in self.engines
        ]
        return lines


def _output_lines(output: OutputReport) -> list[str]:
    shape = "x".join(map(str, output.shape)) or "scalar"
    written = {
        "untouched": "nothing was written",
        "partly": f"{output.unwritten_bytes} bytes were not written, the first at byte {_start(output)}",
        "fully": "all of it was written",
        "": "it was in place of the old one",
    }[output.written]
    lines = [f"{output.what} '{output.name}' ({shape} {output.element_type}): {written}"]
    for similar in output.equals[:3]:
        if similar.share == 1.0:
            lines.append(f"{output.what} equals {similar.what}")
        else:
            share = f"{similar.share_of_wrong:.0%} of the wrong numbers"
            lines.append(f"{output.what}: {share} equal {similar.what}")
    if output.written == "fully" and not output.equals:
        lines.append(f"{output.what} equals nothing that is known")
    for left in output.leftovers[:3]:
        note = left.note
        of_inference = "" if note is None else f", '{note.model}', sample {note.sample} in step {note.step}"
        lines.append(
            f"{output.what}: {left.bytes} bytes were prepared for inference {left.pattern} of client"
            f" {left.client}{of_inference}"
        )
    return lines


def _start(output: OutputReport) -> int:
    return output.unwritten[0][0] if output.unwritten else 0


def _submission_line(note: SubmissionNote, fence: FenceState, queues: list[QueueState]) -> str:
    queue = next((queue for queue in queues if queue.handle == note.queue), None)
    ring = "gone" if queue is None else f"{queue.completed} of {queue.tail} ended"
    return (
        f"queue {note.queue:#x}: submission {note.sequence}, ticket {note.ticket}; the ring: {ring};"
        f" the fence: signalled {fence.signalled}, armed {fence.armed}, result {fence.result}"
    )
