"""Random runs of a device, as notes, and what is unordered in them by sets instead of clocks.

A run is a sequence of steps of the host and of the device. Each command has the set of commands that are over
before it, which is exact and slow; two that use the same bytes, one writing, race unless one is in the set of
the other.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access, Command, NoteFile

SESSION = 7
Past = frozenset[int]


@dataclass(slots=True)
class Step:
    """A command of a list: `number` is its own, in all lists."""

    kind: str
    number: int
    event: int = 0
    start: int = 0
    end: int = 0
    write: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """A wait for an event, a signal or a reset, and all that is over before it."""

    what: str
    number: int
    past: Past


@dataclass(slots=True)
class Submission:
    """A list in a queue: its steps, what was over when it was submitted, the next step, and its past."""

    steps: list[Step]
    before: Past
    program: int
    position: int = 0
    begun: bool = False
    past: set[int] = field(default_factory=set)
    own: list[int] = field(default_factory=list)


class Run:
    """One random run. `races`: the pairs of commands that nothing orders; `lists`: pairs within a list."""

    def __init__(self, seed: int, file: NoteFile) -> None:
        self._random = random.Random(seed)
        self._file = file
        self._time = itertools.count(1)
        self._numbers = itertools.count(1)
        self._queues: list[list[Submission]] = [[] for _ in range(self._random.randint(2, 4))]
        self._done = [0] * len(self._queues)
        self._over: list[list[Past]] = [[] for _ in self._queues]  # by submission: what its end implies
        self._queue_past: list[set[int]] = [set() for _ in self._queues]
        self._host: Past = frozenset()
        self._signals: dict[int, Past] = {}
        self._moments: dict[int, list[Moment]] = {event: [] for event in range(1, 4)}
        self._pasts: dict[int, Past] = {}
        self._steps: dict[int, tuple[int, Step]] = {}
        self.races: set[frozenset[int]] = set()
        self.lists: set[frozenset[int]] = set()
        self.lost: set[frozenset[int]] = set()
        self._go()

    def _write(self, note: notes.AnyNote) -> None:
        self._file.write(note)

    def _go(self) -> None:
        actions = (self._submit, self._run, self._run, self._wait, self._signal, self._reset, self._see)
        for _ in range(self._random.randint(4, 40)):
            self._random.choice(actions)()
        for _ in range(30):
            self._run()
        self._compare()

    # ------------------------------------------------------------ the host

    def _submit(self) -> None:
        queue = self._random.randrange(len(self._queues))
        steps = [self._step() for _ in range(self._random.randint(1, 5))]
        program = next(self._numbers)
        calls = []
        for step in steps:
            site = notes.Site(t=next(self._time), site=step.number, frames=(f"run.py:{step.number} step",))
            self._write(site)
            calls.append((step.kind, step.number))
            self._steps[step.number] = queue, step
        commands = tuple(_command(step, at) for at, step in enumerate(steps))
        self._write(notes.Program(t=next(self._time), program=program, commands=commands))
        recorded = notes.Recorded(
            t=next(self._time), session=SESSION, list=program, recording=program, calls=tuple(calls)
        )
        self._write(recorded)
        self._queues[queue].append(Submission(steps, self._host, program))
        submitted = notes.Submitted(
            t=next(self._time),
            session=SESSION,
            queue=queue,
            first=len(self._queues[queue]),
            recordings=((program, program),),
            site=0,
        )
        self._write(submitted)

    def _step(self) -> Step:
        kinds = ("Fill", "Copy", "Fill", "Copy", "Barrier", "EventSignal", "EventWait", "EventReset")
        kind = self._random.choice(kinds)
        start = self._random.randrange(0, 4) * 8
        event = self._random.randrange(1, 4)
        write = kind == "Fill"
        return Step(kind, next(self._numbers), event, start, start + 12, write)

    def _wait(self) -> None:
        queue = self._random.randrange(len(self._queues))
        sequence = self._done[queue]
        if sequence:
            for past in self._over[queue][:sequence]:
                self._host |= past
            note = notes.Completed(t=next(self._time), session=SESSION, queue=queue, sequence=sequence)
            self._write(note)

    def _signal(self) -> None:
        event = self._random.randrange(1, 4)
        self._act("signal", event)
        self._add_signal(event, self._host)

    def _reset(self) -> None:
        event = self._random.randrange(1, 4)
        self._act("reset", event)
        self._signals.pop(event, None)

    def _act(self, what: str, event: int) -> None:
        """Do something to an event, which the host knows from then on."""
        number = next(self._numbers)
        site = notes.Site(t=next(self._time), site=number, frames=(f"run.py:{number} step",))
        self._write(site)
        self._moments[event].append(Moment(what, number, self._host))
        self._host |= {number}
        self._write(self._host_event(event, what, number))

    def _see(self) -> None:
        event = self._random.randrange(1, 4)
        if event in self._signals:
            self._host |= self._signals[event]
            self._write(self._host_event(event, "seen"))

    def _host_event(self, event: int, what: str, site: int = 0) -> notes.HostEvent:
        return notes.HostEvent(
            t=next(self._time), session=SESSION, id=event, memory=1, offset=event, what=what, site=site
        )

    def _add_signal(self, event: int, past: Past) -> None:
        before = self._signals.get(event)
        self._signals[event] = past if before is None else before & past

    # ------------------------------------------------------------ the device

    def _run(self) -> None:
        """Run the next submission of a queue until it waits."""
        queue = self._random.randrange(len(self._queues))
        if self._done[queue] >= len(self._queues[queue]):
            return
        submission = self._queues[queue][self._done[queue]]
        if not submission.begun:
            submission.begun = True
            submission.past = set(submission.before) | self._queue_past[queue]
        turn = notes.Turn(
            t=next(self._time),
            session=SESSION,
            queue=queue,
            sequence=self._done[queue] + 1,
            program=submission.program,
            first=submission.position,
        )
        self._write(turn)
        done = self._advance(submission)
        end = notes.TurnEnd(t=next(self._time), last=submission.position, done=done)
        self._write(end)
        if done:
            self._done[queue] += 1
            self._queue_past[queue] = submission.past | set(submission.own)
            self._over[queue].append(frozenset(self._queue_past[queue]))

    def _advance(self, submission: Submission) -> bool:
        for step in submission.steps[submission.position :]:
            before = frozenset(submission.past) | frozenset(submission.own)
            if step.kind == "EventWait":
                if step.event not in self._signals:
                    return False
                self._moments[step.event].append(Moment("wait", step.number, before))
                submission.past |= self._signals[step.event]
            elif step.kind == "EventReset":
                self._moments[step.event].append(Moment("reset", step.number, before))
                self._signals.pop(step.event, None)
            elif step.kind == "Barrier":
                submission.past |= set(submission.own)
            self._pasts[step.number] = frozenset(submission.past)
            submission.own.append(step.number)
            submission.position += 1
            if step.kind == "EventSignal":
                self._moments[step.event].append(Moment("signal", step.number, before))
                self._add_signal(step.event, frozenset(submission.past) | frozenset(submission.own))
                note = notes.Signalled(t=next(self._time), file="events", start=step.event)
                self._write(note)
        return True

    # ------------------------------------------------------------ what is unordered

    def _compare(self) -> None:
        for one, other in itertools.combinations(sorted(self._pasts), 2):
            (queue, first), (other_queue, second) = self._steps[one], self._steps[other]
            if not _conflict(first, second):
                continue
            unordered = one not in self._pasts[other] and other not in self._pasts[one]
            if unordered and queue != other_queue:
                self.races.add(frozenset((one, other)))
        for submission in itertools.chain.from_iterable(self._queues):
            if submission.begun:
                self.lists |= set(_unordered_in(submission.steps))
        for submissions in self._queues:
            self._add_stuck(next((each for each in submissions if each.position < len(each.steps)), None))
        for moments in self._moments.values():
            self.lost |= set(_lost_in(moments))

    def _add_stuck(self, head: Submission | None) -> None:
        """Add the wait that the head of a queue has not passed."""
        if head is None or not head.begun:
            return
        step = head.steps[head.position]
        if step.kind == "EventWait" and step.event not in self._signals:
            before = frozenset(head.past) | frozenset(head.own)
            self._moments[step.event].append(Moment("wait", step.number, before))


def _lost_in(moments: list[Moment]) -> Iterator[frozenset[int]]:
    """Yield each wait with each reset that may have taken its signal."""

    def is_before(one: Moment, other: Moment) -> bool:
        return one.number in other.past

    resets = [moment for moment in moments if moment.what == "reset"]
    for at, wait in enumerate(moments):
        if wait.what != "wait":
            continue
        for reset in resets:
            if is_before(wait, reset) or is_before(reset, wait):
                continue
            last = max(at, moments.index(reset))
            for signal in moments[:last]:
                earlier = [each for each in resets if moments.index(each) <= last]
                taken = any(is_before(signal, each) and is_before(each, wait) for each in earlier)
                late = is_before(reset, signal) or is_before(wait, signal)
                if signal.what == "signal" and not taken and not late:
                    yield frozenset((wait.number, reset.number))


def _unordered_in(steps: list[Step]) -> Iterator[frozenset[int]]:
    for (at, one), (later, other) in itertools.combinations(enumerate(steps), 2):
        between = steps[at:later]
        if _conflict(one, other) and not any(step.kind in ("Barrier", "EventWait") for step in between):
            yield frozenset((one.number, other.number))


def _conflict(one: Step, other: Step) -> bool:
    both = {one.kind, other.kind} <= {"Fill", "Copy"}
    return both and (one.write or other.write) and one.start < other.end and other.start < one.end


def _command(step: Step, at: int) -> Command:
    if step.kind in ("EventSignal", "EventWait", "EventReset"):
        event = Access(1, step.event, "events", step.event, step.event + 1)
        return Command(step.kind, at, event=event)
    access = (Access(2, step.start, "data", step.start, step.end),)
    if step.kind == "Fill":
        return Command(step.kind, at, writes=access)
    return Command(step.kind, at, reads=access if step.kind == "Copy" else ())


def found_pairs(folder: Path, kind: str) -> set[frozenset[int]]:
    """Return the pairs of commands in the findings of a kind."""
    from softnpu.tools.check.analysis import analyse

    pairs = set()
    for finding in analyse(folder).found.values():
        if finding.kind.value == kind:
            lines = [place.frames[0] for place in finding.places if place.frames]
            pairs.add(frozenset(int(line.split(":")[1].split()[0]) for line in lines[:2]))
    return pairs
