"""The analysis: replay the notes by time, keep clocks, and compare every access with the unordered ones.

What orders two commands: a barrier or an event between them in a list, the order of lists in a queue, an
event or semaphore from one queue to another, and the host: what was submitted after any program had seen the
end of a command comes after it. The last rule is generous (that program may not have told the other one), so
that what is reported had no way to be ordered.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import softnpu.driver
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access, Command
from softnpu.tools.check.clocks import NOTHING, Clock, Queue, join, meet, with_queue
from softnpu.tools.check.findings import Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.notebook import Notebook

_PRUNE_AT: Final = 512
_ORDERING: Final = ("Barrier", "EventWait")
_NEVER: Final = 1 << 63


@dataclass(slots=True)
class Work:
    """A submission: where it came from, what was over when it was submitted, how far it is."""

    session: int
    queue: int
    sequence: int
    submitted_ns: int
    site: Frames
    recording: tuple[int, int]
    fence: int
    over: Clock
    completed_ns: int = _NEVER
    program: notes.Program | None = None
    position: int = 0
    done: bool = False
    failure: str = ""
    end: Clock = field(default_factory=dict)


@dataclass(slots=True)
class Timeline:
    """A queue: commands so far, how many of them are over for its next one, and what else is."""

    count: int = 0
    own: int = 0
    others: Clock = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Used:
    """An access in the history of a file."""

    queue: Queue
    number: int
    start: int
    end: int
    write: bool
    work: Work
    command: int
    access: Access


class Analysis:
    """Replays a notebook. `as_device`: commands of a list run in order, as this device does."""

    def __init__(self, notebook: Notebook, *, as_device: bool = False) -> None:
        self._book = notebook
        self._as_device = as_device
        self._findings = Findings()
        self._work: dict[tuple[int, int, int], Work] = {}
        self._timelines: dict[Queue, Timeline] = defaultdict(Timeline)
        self._host: Clock = NOTHING
        self._events: dict[tuple[str, int], Clock] = {}
        self._programs: dict[tuple[str, int], notes.Program] = {}
        self._ordered: set[tuple[str, int]] = set()  # programs whose lists were looked at
        self._running: dict[str, Work] = {}
        self._history: dict[str, list[Used]] = defaultdict(list)
        self._completed: dict[Queue, int] = defaultdict(int)
        self._unsubmitted: set[int] = set()

    def run(self) -> Findings:
        """Return what is wrong."""
        for t, file, note in self._book.lines:
            self._replay(t, file, note)
        self._judge_lifetimes()
        self._judge_host()
        self._judge_waits()
        self._findings.submissions = len(self._work)
        for session in sorted(self._unsubmitted):
            self._findings.unseen.append(
                f"session {session} is of a driver that writes no notes: nothing of it is checked"
            )
        return self._findings

    def _replay(self, t: int, file: str, note: notes.AnyNote) -> None:
        match note:
            case notes.Submitted():
                self._submit(t, file, note)
            case notes.Completed():
                self._complete(t, note)
            case notes.HostEvent():
                self._host_event(t, note)
            case notes.Program():
                self._programs[file, note.program] = note
            case notes.Turn():
                self._begin_turn(file, note)
            case notes.Signalled():
                if file in self._running:
                    self._advance_to_signal(self._running[file], (note.file, note.start))
            case notes.TurnEnd():
                self._end_turn(file, note)
            case notes.Unwritten():
                self._unwritten(note)
            case _:
                pass

    # ------------------------------------------------------------ the host

    def _submit(self, t: int, file: str, note: notes.Submitted) -> None:
        site = self._book.frames(file, note.site)
        for offset, recording in enumerate(note.recordings):
            sequence = note.first + offset
            self._work[note.session, note.queue, sequence] = Work(
                note.session, note.queue, sequence, t, site, recording, note.fence, self._host
            )

    def _complete(self, t: int, note: notes.Completed) -> None:
        queue = note.session, note.queue
        for sequence in range(self._completed[queue] + 1, note.sequence + 1):
            work = self._work.get((*queue, sequence))
            if work is not None and work.completed_ns == _NEVER:
                work.completed_ns = t
                self._learn(t, work.end)
        self._completed[queue] = max(self._completed[queue], note.sequence)

    def _learn(self, t: int, clock: Clock) -> None:
        """The host knows that all of this is over: also the submissions that others have waited for."""
        before, self._host = self._host, join(self._host, clock)
        if self._host is not before:
            for queue in self._host:
                self._complete_known(t, queue)

    def _complete_known(self, t: int, queue: Queue) -> None:
        """Complete the submissions of a queue of which every command is known to be over."""
        sequence = self._completed[queue] + 1
        while (work := self._work.get((*queue, sequence))) is not None and work.done:
            if work.end.get(queue, 0) > self._host.get(queue, 0):
                return
            work.completed_ns = min(t, work.completed_ns)
            self._completed[queue] = sequence
            sequence += 1

    def _host_event(self, t: int, note: notes.HostEvent) -> None:
        event = self._book.events.get((note.session, note.memory, note.offset))
        if event is None:
            return  # no command uses it
        if note.what == "signal":
            self._signal(event, self._host)
        elif note.what == "reset":
            self._events.pop(event, None)
        else:
            self._learn(t, self._events.get(event, NOTHING))

    def _signal(self, event: tuple[str, int], clock: Clock) -> None:
        """Signal an event. If it was signalled already, its waiters know of no more than both signals."""
        before = self._events.get(event)
        self._events[event] = clock if before is None else meet(before, clock)

    # ------------------------------------------------------------ the device

    def _begin_turn(self, file: str, note: notes.Turn) -> None:
        work = self._work.get((note.session, note.queue, note.sequence))
        program = self._programs.get((file, note.program))
        if work is None or program is None:
            self._unsubmitted.add(note.session)
            self._running.pop(file, None)
            return
        self._running[file] = work
        if work.program is None:
            timeline = self._timelines[note.session, note.queue]
            timeline.own = timeline.count  # lists of a queue run in order
            timeline.others = join(timeline.others, work.over)
            if not self._as_device and (file, note.program) not in self._ordered:
                self._ordered.add((file, note.program))
                work.program = program
                self._judge_list(work)
        work.program = program

    def _end_turn(self, file: str, note: notes.TurnEnd) -> None:
        work = self._running.pop(file, None)
        if work is None or work.program is None:
            return
        for number in range(work.position, len(work.program.commands)):
            if not note.done and work.program.commands[number].step >= note.last:
                break
            self._advance(work, number)
        work.failure = note.failure
        if note.done or note.failure:
            work.done = note.done
            timeline = self._timelines[work.session, work.queue]
            work.end = with_queue(timeline.others, (work.session, work.queue), timeline.count)
            self._complete_known(note.t, (work.session, work.queue))

    def _advance_to_signal(self, work: Work, event: tuple[str, int]) -> None:
        commands = () if work.program is None else work.program.commands
        for number in range(work.position, len(commands)):
            at = commands[number].event
            if commands[number].kind == "EventSignal" and at is not None and (at.file, at.start) == event:
                for each in range(work.position, number + 1):
                    self._advance(work, each)
                return

    def _advance(self, work: Work, number: int) -> None:
        """Run one command: compare its accesses, and move the clocks."""
        assert work.program is not None
        command = work.program.commands[number]
        queue = work.session, work.queue
        timeline = self._timelines[queue]
        timeline.count += 1
        work.position = number + 1
        event = None if command.event is None else (command.event.file, command.event.start)
        if command.kind == "EventWait" and event is not None:
            timeline.others = join(timeline.others, self._events.get(event, NOTHING))
            timeline.own = max(timeline.own, timeline.others.get(queue, 0))
        elif command.kind == "EventSignal" and event is not None:
            self._signal(event, with_queue(timeline.others, queue, timeline.count))
        elif command.kind == "EventReset" and event is not None:
            self._events.pop(event, None)
        elif command.kind == "Barrier":
            timeline.own = timeline.count
        for access, write in _accesses(command):
            self._access(Used(queue, timeline.count, access.start, access.end, write, work, number, access))

    def _access(self, used: Used) -> None:
        history = self._history[used.access.file]
        others = self._timelines[used.queue].others
        for before in history:
            if (
                before.queue != used.queue
                and (before.write or used.write)
                and before.start < used.end
                and used.start < before.end
                and others.get(before.queue, 0) < before.number
            ):
                self._race(before, used)
        history.append(used)
        if len(history) >= _PRUNE_AT and len(history) % _PRUNE_AT == 0:
            self._prune(used.access.file)

    def _prune(self, file: str) -> None:
        """Forget accesses that are over for everything submitted from now on, or still to run."""
        pending = [work.over for work in self._work.values() if not work.done and not work.failure]
        clocks = [self._host, *pending]
        self._history[file] = [
            used
            for used in self._history[file]
            if any(clock.get(used.queue, 0) < used.number for clock in clocks)
        ]

    # ------------------------------------------------------------ findings

    def _race(self, before: Used, after: Used) -> None:
        first, last = max(before.start, after.start), min(before.end, after.end)
        memory = self._book.memory(after.work.session, after.access.memory)
        self._findings.add(
            Finding(
                Kind.RACE,
                f"two queues use the same {last - first:,} bytes, one writes, and nothing orders them",
                (
                    self._command(before.work, before.command, before.access, before.write),
                    self._command(after.work, after.command, after.access, after.write),
                    *((memory,) if memory is not None else ()),
                ),
                "let one signal an event that the other waits for, or wait on the host in between",
            )
        )

    def _judge_list(self, work: Work) -> None:
        """Compare commands of a list between two points that order them."""
        assert work.program is not None
        since: list[tuple[int, Access, bool]] = []
        for number, command in enumerate(work.program.commands):
            if command.kind in _ORDERING:
                since.clear()
                continue
            accesses = list(_accesses(command))
            for before, access, write in since:
                for own, own_write in accesses:
                    if (write or own_write) and _overlap(access, own):
                        self._list_order(work, (before, access, write), (number, own, own_write))
            since.extend((number, access, write) for access, write in accesses)

    def _list_order(
        self, work: Work, before: tuple[int, Access, bool], after: tuple[int, Access, bool]
    ) -> None:
        size = min(before[1].end, after[1].end) - max(before[1].start, after[1].start)
        memory = self._book.memory(work.session, after[1].memory)
        self._findings.add(
            Finding(
                Kind.LIST_ORDER,
                f"two commands of a list use the same {size:,} bytes, one writes: Level Zero does not order "
                "them",
                (
                    self._command(work, *before),
                    self._command(work, *after),
                    *((memory,) if memory is not None else ()),
                ),
                "append a barrier between them, or let the second wait for an event of the first",
            )
        )

    def _unwritten(self, note: notes.Unwritten) -> None:
        work = self._work.get((note.session, note.queue, note.sequence))
        if work is None:
            return
        memory = self._book.memory(note.session, note.access.memory)
        first = note.access.offset + note.first
        self._findings.add(
            Finding(
                Kind.UNINITIALISED,
                f"the device reads {note.count:,} bytes that nobody wrote, from byte {first:,} of the "
                "allocation on",
                (
                    self._command(work, note.command, note.access, write=False),
                    *((memory,) if memory is not None else ()),
                ),
                "write the memory before the submission, or let a command that is ordered before write it",
            )
        )

    def _judge_lifetimes(self) -> None:
        for work in self._work.values():
            for kind, number, what in self._users(work):
                thing = self._book.objects.get((work.session, kind, number))
                if thing is None:
                    continue
                for t, frames in thing.resets:
                    if work.submitted_ns < t < work.completed_ns:
                        self._ended(Kind.RESET_IN_FLIGHT, work, what, thing.frames, "reset", frames)
                if thing.ended_ns is None:
                    continue
                if thing.ended_ns < work.submitted_ns and kind == "memory":
                    self._ended(Kind.USE_AFTER_FREE, work, what, thing.frames, "freed", thing.ended)
                elif work.submitted_ns < thing.ended_ns < work.completed_ns:
                    freed = kind == "memory"
                    found = Kind.FREED_IN_FLIGHT if freed else Kind.DESTROYED_IN_FLIGHT
                    verb = "freed" if freed else "destroyed"
                    self._ended(found, work, what, thing.frames, verb, thing.ended)

    def _users(self, work: Work) -> Iterator[tuple[str, int, str]]:
        """Yield the objects that a submission uses: kind, number, and what they are to it."""
        yield "list", work.recording[0], "the command list"
        yield "queue", work.queue, "the queue"
        queue = self._book.objects.get((work.session, "queue", work.queue))
        if queue is not None:
            yield "context", queue.parent, "the context"
        if work.fence:
            yield "fence", work.fence, "the fence"
        commands = () if work.program is None else work.program.commands
        seen: set[tuple[str, int]] = set()
        for command in commands:
            if command.graph and ("graph", command.graph) not in seen:
                seen.add(("graph", command.graph))
                yield "graph", command.graph, f"the graph {command.model!r}" if command.model else "the graph"
            if command.event is not None:
                yield from self._events_of(work, command.event)
            for access, write in _accesses(command):
                if ("memory", access.memory) not in seen:
                    seen.add(("memory", access.memory))
                    yield (
                        "memory",
                        access.memory,
                        "memory that it writes" if write else "memory that it reads",
                    )

    def _events_of(self, work: Work, at: Access) -> Iterator[tuple[str, int, str]]:
        """Yield the event that lay there when the submission was made, and its pool."""
        made = self._book.event_ids.get((work.session, at.memory, at.offset), ())
        number = next((number for t, number in reversed(made) if t < work.submitted_ns), None)
        if number is not None:
            yield "event", number, "an event that it waits for or signals"
            pool = self._book.objects[work.session, "event", number].parent
            yield "event pool", pool, "the pool of an event that it waits for or signals"

    def _ended(self, kind: Kind, work: Work, what: str, made: Frames, verb: str, ended: Frames) -> None:
        process = self._book.process(work.session)
        before = kind is Kind.USE_AFTER_FREE
        title = f"a submission uses {what} after it was {verb}" if before else f"{what} is {verb} in flight"
        self._findings.add(
            Finding(
                kind,
                title,
                (
                    Place(f"{verb}", process, ended),
                    Place("submitted", process, work.site),
                    Place("made", process, made),
                ),
                "record the list again without it"
                if before
                else "wait for the submission first: its fence, its queue, or an event that it signals last",
            )
        )

    def _judge_host(self) -> None:
        """Compare what the program touched with what was in flight then."""
        for t, file, note in self._book.lines:
            if not isinstance(note, notes.Touched):
                continue
            found = self._book.memory_at(file, t, note.address)
            if found is None:
                continue
            session, handle, memory = found
            frames = _outside(note.frames)
            verb = "writes" if note.write else "reads"
            at = note.address - memory.address
            host = Place(f"the program {verb} byte {at:,}", self._book.process(session), frames)
            made = Place("made", self._book.process(session), memory.frames)
            if note.freed and memory.ended_ns is not None and memory.ended_ns < t:
                freed = Place("freed", self._book.process(session), memory.ended)
                title = f"the program {verb} memory after it was freed"
                mend = "free it after the last use"
                self._findings.add(Finding(Kind.USE_AFTER_FREE, title, (host, freed, made), mend))
                continue
            for work in self._work.values():
                if work.session == session and work.submitted_ns < t < work.completed_ns:
                    self._host_access(work, handle, at, note, (host, made))

    def _host_access(
        self, work: Work, handle: int, at: int, note: notes.Touched, places: tuple[Place, Place]
    ) -> None:
        for number, command in enumerate(() if work.program is None else work.program.commands):
            for access, write in _accesses(command):
                inside = access.offset <= at < access.offset + access.end - access.start
                if access.memory == handle and inside and (write or note.write):
                    verb, does = ("writes" if each else "reads" for each in (note.write, write))
                    host, made = places
                    self._findings.add(
                        Finding(
                            Kind.HOST_ACCESS,
                            f"the program {verb} memory that a command in flight {does}",
                            (host, self._command(work, number, access, write), made),
                            "wait for the submission first: its fence, its queue, or an event",
                        )
                    )
                    return

    def _judge_waits(self) -> None:
        for work in self._work.values():
            commands = () if work.program is None else work.program.commands
            if work.done or work.position >= len(commands):
                continue
            command = commands[work.position]
            at = command.event
            if command.kind == "EventWait" and at is not None and (at.file, at.start) not in self._events:
                self._findings.add(
                    Finding(
                        Kind.NEVER_SIGNALLED,
                        "a command waits for an event that nothing has signalled",
                        (self._command(work, work.position, at, write=False),),
                        "submit the signaller, or signal the event on the host, before the device's limit",
                    )
                )

    def _command(self, work: Work, number: int, access: Access, write: bool) -> Place:
        """Describe a command: what it does to which bytes, and where it was appended and submitted."""
        command = None if work.program is None else work.program.commands[number]
        calls = self._book.calls.get((work.session, *work.recording), ())
        call, frames = calls[number] if number < len(calls) else ("a command", ())
        use = (
            "waits" if command is not None and command.kind == "EventWait" else "writes" if write else "reads"
        )
        what = f"{call} {use}"
        size = access.end - access.start
        if command is None or command.kind != "EventWait":
            what += f" bytes {access.offset:,} to {access.offset + size - 1:,}"
        if access.name:
            what += f" argument '{access.name}' of '{'' if command is None else command.model}'"
        submitted = f"submitted at {work.site[0]}" if work.site else "submitted somewhere"
        return Place(
            f"{what}, command {number} of a list {submitted}", self._book.process(work.session), frames
        )


def _accesses(command: Command) -> Iterator[tuple[Access, bool]]:
    return itertools.chain(
        ((access, True) for access in command.writes), ((access, False) for access in command.reads)
    )


def _outside(frames: Frames) -> Frames:
    """Return the frames from the innermost one on that is not of this package."""
    ours = f"{Path(softnpu.driver.__file__ or '').parent}"
    return tuple(frame for frame in frames if not frame.startswith(ours)) or frames


def _overlap(one: Access, other: Access) -> bool:
    return one.file == other.file and one.start < other.end and other.start < one.end


def analyse(folder: Path, *, as_device: bool = False) -> Findings:
    """Return the findings of the run whose notes lie in `folder`."""
    return Analysis(Notebook(folder), as_device=as_device).run()
