"""Turns records into timeline events: spans, instants, counters, and arrows between spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from softnpu.emulator.interface.profiling import TaskType
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.interface.trace import TraceFlag, TraceKind
from softnpu.emulator.interface.trace_messages import TraceRole
from softnpu.tools.trace.collector import RecordedRing, Recording

_LAYERS_THREAD: Final = 0xFFFFFFF0
"""Layers have a track of their own."""
_UNITS: Final = {unit.value: unit.name for unit in TaskType}


class Place(NamedTuple):
    """A track: a thread of a process."""

    pid: int
    tid: int


@dataclass
class Span:
    """An activity on a track, with a duration; nanoseconds of CLOCK_MONOTONIC."""

    name: str
    category: str
    place: Place
    start: int
    duration: int
    args: dict[str, Any] = field(default_factory=dict)


class Instant(NamedTuple):
    """A momentary event."""

    name: str
    place: Place
    time: int
    args: dict[str, Any]


class Sample(NamedTuple):
    """The value of a counter from now on."""

    name: str
    pid: int
    time: int
    value: int


class Step(NamedTuple):
    """One end of an arrow: it begins, continues or ends in the span on this track at this time."""

    phase: str
    id: int
    place: Place
    time: int


class _Submission(NamedTuple):
    session: int
    queue: int
    sequence: int


@dataclass
class _Way:
    """The known times of a submission in flight: when it was submitted, ran, and was known to be over."""

    submitted: tuple[Place, int] | None = None
    executed: tuple[Place, int] | None = None
    ended: int = 0
    device: int = 0
    completed: tuple[Place, int] | None = None


@dataclass
class Timeline:
    """The contents of a trace."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[Place, str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    submissions: int = 0
    """The number ended, and their inferences."""
    inferences: int = 0
    counted_submissions: int = 0
    """The same by the devices' counters."""
    counted_inferences: int = 0


def timeline_of(recording: Recording) -> Timeline:
    """Return the timeline of a recording."""
    return _Builder(recording).build()


class _Builder:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._timeline = Timeline()
        self._ways: defaultdict[_Submission, _Way] = defaultdict(_Way)
        self._completions: dict[tuple[int, int], list[tuple[int, Place, int]]] = {}
        self._supervisor = recording.daemon
        self._totals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def build(self) -> Timeline:
        for ring in self._recording.rings:
            match TraceRole(ring.info.role):
                case TraceRole.CLIENT:
                    self._add_client(ring)
                case TraceRole.ENGINE:
                    self._add_engine(ring)
                case TraceRole.SUPERVISOR:
                    self._add_supervisor(ring)
        self._connect()
        self._sample_depths()
        for totals in self._totals.values():
            self._timeline.counted_submissions += totals[-1][0] - totals[0][0]
            self._timeline.counted_inferences += totals[-1][1] - totals[0][1]
        return self._timeline

    # ------------------------------------------------------------ clients

    def _add_client(self, ring: RecordedRing) -> None:
        pid, session = ring.info.pid, ring.info.session
        self._timeline.processes.setdefault(pid, f"{ring.info.name} (session {session})")
        open_spans: dict[int, list[Span]] = defaultdict(list)
        for record in _rows(ring):
            place = Place(pid, record["thread"])
            if record["kind"] == TraceKind.SUBMIT:
                first, last = record["second"], record["third"]
                for sequence in range(first, min(last, first + 4096) + 1):
                    self._ways[_Submission(session, record["first"], sequence)].submitted = (
                        place, record["time"]
                    )  # fmt: skip
            elif record["kind"] == TraceKind.COMPLETE:
                key = session, record["first"]
                self._completions.setdefault(key, []).append((record["second"], place, record["time"]))
            else:
                self._add_call(ring, record, place, open_spans[record["thread"]])
        for spans in open_spans.values():
            for span in spans:  # its process ended inside
                span.duration = max(0, self._recording.end - span.start)
                span.args["unfinished"] = True

    def _add_call(
        self, ring: RecordedRing, record: dict[str, int], place: Place, open_spans: list[Span]
    ) -> None:
        name = _name(ring, record["name"])
        if record["flags"] & TraceFlag.END:
            for index in range(len(open_spans) - 1, -1, -1):
                if open_spans[index].start == record["time"] and open_spans[index].name == name:
                    span = open_spans.pop(index)
                    span.duration = record["duration"]
                    span.args = _result(record)
                    return
        span = Span(name, "call", place, record["time"], record["duration"], _result(record))
        self._timeline.spans.append(span)
        if record["flags"] & TraceFlag.BEGIN:
            open_spans.append(span)

    # ------------------------------------------------------------ engines

    def _add_engine(self, ring: RecordedRing) -> None:
        pid, timeline = ring.info.pid, self._timeline
        timeline.processes.setdefault(pid, f"engine of NPU.{ring.info.device}")
        for record in _rows(ring):
            place = Place(pid, record["thread"])
            name = _name(ring, record["name"])
            match record["kind"]:
                case TraceKind.EXECUTE:
                    timeline.threads.setdefault(place, "execution")
                    self._add_execution(ring, record, place, name)
                case TraceKind.LAYER:
                    place = Place(pid, _LAYERS_THREAD)
                    timeline.threads.setdefault(place, "layers")
                    args: dict[str, Any] = {
                        "layer": record["first"] & 0xFFFFFFFF,
                        "unit": _UNITS.get(record["first"] >> 32, ""),
                        "measured_us": record["second"] / 1e3,
                        "cpu_us": record["third"] / 1e3,
                    }
                    timeline.spans.append(
                        Span(name, "layer", place, record["time"], record["duration"], args)
                    )
                case TraceKind.LOAD:
                    timeline.threads.setdefault(place, "loader")
                    timeline.spans.append(
                        Span(name, "load", place, record["time"], record["duration"], _result(record))
                    )
                case _:
                    self._totals[ring.info.device].append((record["first"], record["second"]))

    def _add_execution(self, ring: RecordedRing, record: dict[str, int], place: Place, name: str) -> None:
        session, inferences = record["third"] & 0xFFFFFFFF, record["third"] >> 32
        ended = bool(record["flags"] & TraceFlag.END)
        args = {
            "session": session,
            "queue": f"{record['first']:#x}",
            "submission": record["second"],
            "inferences": inferences,
            "ended": ended,
        }
        start, duration = record["time"], record["duration"]
        span = Span(name or "commands", "execution", place, start, duration, args | _result(record))
        self._timeline.spans.append(span)
        way = self._ways[_Submission(session, record["first"], record["second"])]
        way.device = ring.info.device
        if way.executed is None:
            way.executed = place, start
        if ended:
            way.ended = start + duration
            self._timeline.submissions += 1
            self._timeline.inferences += inferences

    # ------------------------------------------------------------ the supervisor

    def _add_supervisor(self, ring: RecordedRing) -> None:
        pid, timeline = ring.info.pid, self._timeline
        self._supervisor = pid
        timeline.processes[pid] = "softnpu daemon"
        for record in _rows(ring):
            place, name = Place(pid, record["thread"]), _name(ring, record["name"])
            match record["kind"]:
                case TraceKind.REQUEST:
                    timeline.threads.setdefault(place, "supervisor")
                    args = {"session": record["first"]}
                    timeline.spans.append(
                        Span(name, "request", place, record["time"], record["duration"], args)
                    )
                case TraceKind.STAGE:
                    worker = Place(record["thread"], record["thread"])
                    timeline.processes.setdefault(worker.pid, "compiler worker")
                    args = {"session": record["first"]} | _result(record)
                    timeline.spans.append(
                        Span(name, "compilation", worker, record["time"], record["duration"], args)
                    )
                case TraceKind.COUNTER:
                    session, device = record["second"], record["third"]
                    whose = f"session {session}" if session else f"NPU.{device}"
                    timeline.samples.append(
                        Sample(f"{name} of {whose}", pid, record["time"], record["first"])
                    )
                case _:
                    args = {"session": record["first"]} if record["first"] else {}
                    if record["second"]:
                        args["device"] = record["second"] - 1
                    if record["third"]:
                        args["number"] = record["third"]
                    timeline.instants.append(Instant(name, place, record["time"], args))

    # ------------------------------------------------------------ connections

    def _connect(self) -> None:
        """Draw the arrows: call, execution, and the wait that showed the client the end."""
        for (session, queue), ends in self._completions.items():
            for sequence, place, at in ends:
                way = self._ways.get(_Submission(session, queue, sequence))
                if way is not None and (way.completed is None or at < way.completed[1]):
                    way.completed = place, at
        for number, way in enumerate(self._ways.values(), 1):
            if way.submitted is None or way.executed is None:
                continue
            steps = self._timeline.steps
            steps.append(Step("s", number, *way.submitted))
            known = way.completed is not None and way.completed[1] >= way.executed[1]
            steps.append(Step("t" if known else "f", number, *way.executed))
            if known and way.completed is not None:
                steps.append(Step("f", number, *way.completed))

    def _sample_depths(self) -> None:
        """Count the submissions of each device that are in flight."""
        changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for way in self._ways.values():
            if way.submitted is not None and way.ended:
                changes[way.device] += [(way.submitted[1], 1), (max(way.ended, way.submitted[1]), -1)]
        for device, entries in changes.items():
            depth = 0
            for at, change in sorted(entries):
                depth += change
                self._timeline.samples.append(
                    Sample(f"queue depth of NPU.{device}", self._supervisor, at, max(0, depth))
                )


def _rows(ring: RecordedRing) -> Iterator[dict[str, int]]:
    names = ring.records.dtype.names or ()
    for row in ring.records.tolist():
        yield dict(zip(names, row, strict=True))


def _name(ring: RecordedRing, index: int) -> str:
    return ring.names.get(index, "" if not index else f"name {index}")


def _result(record: dict[str, int]) -> dict[str, Any]:
    if not record["result"]:
        return {}
    return {"result": ErrorInfo(result=record["result"], object="", found="").name}
