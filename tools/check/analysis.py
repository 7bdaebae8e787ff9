"""The analysis: replay the notes by time, keep clocks, and compare every access with the unordered ones.

What orders two commands: a barrier or an event between them in a list, the order of lists in a queue, an
event or semaphore from one queue to another, and the host: what was submitted after any program had seen the
end of a command comes after it. The last rule is generous (that program may not have told the other one), so
that what is reported had no way to be ordered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access
from softnpu.tools.check.bounds import judge_bounds
from softnpu.tools.check.clocks import HOST, NOTHING, Clock, Queue, join, meet, with_queue
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from softnpu.tools.check.leaks import judge_leaks
from softnpu.tools.check.lifetimes import Lifetimes
from softnpu.tools.check.notebook import Notebook
from softnpu.tools.check.waits import Waits, awaited
from softnpu.tools.check.wakeups import NEVER_OVER, Moment, Wakeups
from softnpu.tools.check.waste import Waste
from softnpu.tools.check.work import NEVER, Work, accesses, command_place, overlap

_PRUNE_AT: Final = 512
_ORDERING: Final = ("Barrier", "EventWait")


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
    """Replays a notebook. `as_device`: commands of a list run in order, as this device does.

    `waste`: look for what is right but wasteful, too.
    """

    def __init__(self, notebook: Notebook, *, as_device: bool = False, waste: bool = False) -> None:
        self._book = self.book = notebook
        self._as_device = as_device
        self._waste = waste
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
        self._judged_ns = 0
        self._wakeups = Wakeups()
        self._lost: set[tuple[int, int, int]] = set()  # submissions that have lost their wake-up

    def run(self) -> Findings:
        """Return what is wrong."""
        self._replay_all()
        for work in self._work.values():
            self._judge_stuck(work)
        Lifetimes(self._book, self._work.values(), self._findings).judge()
        Waits(self._book, self._work.values(), self._events, self._findings).judge(self._lost)
        judge_bounds(self._book, self._findings)
        judge_leaks(self._book, self._findings)
        if self._waste:
            Waste(self._book, self._work.values(), self._findings).judge()
        self._findings.submissions = len(self._work)
        for session in sorted(self._unsubmitted):
            self._findings.unseen.append(
                f"session {session} is of a driver that writes no notes: nothing of it is checked"
            )
        # what waits for another may have no program yet, but not all of them; barriers alone have none
        unrun = sum(
            work.program is None and (work.completed_ns != NEVER or not self._programs)
            for key, work in self._work.items()
            if key not in self._book.failed and not self._has_barriers_alone(work)
        )
        if unrun:
            self._findings.unseen.append(f"submissions of which no engine has noted a command: {unrun}")
        return self._findings

    def _has_barriers_alone(self, work: Work) -> bool:
        calls = self._book.calls.get((work.session, *work.recording), ())
        return bool(calls) and all("Barrier" in call for call, _ in calls)

    def so_far(self) -> Findings:
        """Return what is wrong already, after the notebook was read again."""
        self._replay_all()
        going = [work for work in self._work.values() if work.completed_ns > self._judged_ns]
        self._judged_ns = self._book.lines[-1][0] if self._book.lines else self._judged_ns
        Lifetimes(self._book, going, self._findings).judge()
        judge_bounds(self._book, self._findings)
        return self._findings

    def _replay_all(self) -> None:
        for t, file, note in self._book.lines:
            self._replay(t, file, note)

    def _replay(self, t: int, file: str, note: notes.AnyNote) -> None:
        match note:
            case notes.Submitted():
                self._submit(t, file, note)
            case notes.Completed():
                self._complete(t, note)
            case notes.HostEvent():
                self._host_event(t, file, note)
            case notes.Made(kind="event"):
                self._begin_event(note)
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
            if work is not None and work.completed_ns == NEVER:
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
        while (work := self._work.get((*queue, sequence))) is not None and work.has_run:
            if work.end.get(queue, 0) > self._host.get(queue, 0):
                return
            work.completed_ns = min(t, work.completed_ns)
            self._completed[queue] = sequence
            sequence += 1

    def _begin_event(self, note: notes.Made) -> None:
        """Forget the event that lay there before."""
        event = self._book.events.get((note.session, note.memory, note.offset))
        if event is not None:
            self._events.pop(event, None)
            self._wakeups.forget(event)

    def _host_event(self, t: int, file: str, note: notes.HostEvent) -> None:
        event = self._book.events.get((note.session, note.memory, note.offset))
        if event is None:
            return  # no command uses it
        if note.what == "seen":
            self._learn(t, self._events.get(event, NOTHING))
            return
        number = self._host.get(HOST, 0) + 1
        what = "zeEventHostSignal" if note.what == "signal" else "zeEventHostReset"
        place = partial(Place, what, self._book.process(note.session), self._book.frames(file, note.site))
        moment = Moment(HOST, number, self._host, place)
        self._host = with_queue(self._host, HOST, number)
        if note.what == "signal":
            self._signal(event, self._host)
            self._wakeups.add_signal(event, moment)
        else:
            self._reset(event, moment)

    def _signal(self, event: tuple[str, int], clock: Clock) -> None:
        """Signal an event. If it was signalled already, its waiters know of no more than both signals."""
        before = self._events.get(event)
        self._events[event] = clock if before is None else meet(before, clock)

    def _reset(self, event: tuple[str, int], moment: Moment) -> None:
        self._events.pop(event, None)
        for wait, signal in self._wakeups.add_reset(event, moment):
            self._lost_wake_up(wait, moment, signal)

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
        if command.event is not None:
            event = command.event.file, command.event.start
            place = partial(command_place, self._book, work, number, command.event, write=True)
            moment = Moment(queue, timeline.count, timeline.others, place)
            if command.kind == "EventWait":
                for reset, signal in self._wakeups.add_wait(event, moment):
                    self._lost_wake_up(moment, reset, signal)
                timeline.others = join(timeline.others, self._events.get(event, NOTHING))
                timeline.own = max(timeline.own, timeline.others.get(queue, 0))
            elif command.kind == "EventSignal":
                self._signal(event, with_queue(timeline.others, queue, timeline.count))
                self._wakeups.add_signal(event, moment)
            else:
                self._reset(event, moment)
        elif command.kind == "Barrier":
            timeline.own = timeline.count
        if work.has_run:
            work.end = with_queue(timeline.others, queue, timeline.count)
        for access, write in accesses(command):
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

    def _judge_stuck(self, work: Work) -> None:
        """Look whether a wait that has not ended has lost its signal."""
        event = None if work.done else awaited(work)
        if event is None or event in self._events:
            return
        assert work.program is not None
        at = work.program.commands[work.position].event
        assert at is not None
        queue = work.session, work.queue
        place = partial(command_place, self._book, work, work.position, at, write=False)
        wait = Moment(queue, NEVER_OVER, self._timelines[queue].others, place)
        for reset, signal in self._wakeups.add_wait(event, wait):
            self._lost.add((work.session, work.queue, work.sequence))
            self._lost_wake_up(wait, reset, signal)

    # ------------------------------------------------------------ findings

    def _lost_wake_up(self, wait: Moment, reset: Moment, signal: Moment) -> None:
        self._findings.add(
            Finding(
                Kind.LOST_WAKE_UP,
                "an event is reset, and a command that nothing orders with that waits for the signal before",
                (wait.place(), reset.place(), signal.place()),
                "reset it when the wait is known to be over, or before the signal",
            )
        )

    def _race(self, before: Used, after: Used) -> None:
        first, last = max(before.start, after.start), min(before.end, after.end)
        memory = self._book.memory(after.work.session, after.access.memory)
        self._findings.add(
            Finding(
                Kind.RACE,
                f"two queues use the same {last - first:,} bytes, one writes, and nothing orders them",
                (
                    command_place(self._book, before.work, before.command, before.access, before.write),
                    command_place(self._book, after.work, after.command, after.access, after.write),
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
            owns = list(accesses(command))
            for before, access, write in since:
                for own, own_write in owns:
                    if (write or own_write) and overlap(access, own):
                        self._list_order(work, (before, access, write), (number, own, own_write))
            since.extend((number, access, write) for access, write in owns)

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
                    command_place(self._book, work, *before),
                    command_place(self._book, work, *after),
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
                    command_place(self._book, work, note.command, note.access, write=False),
                    *((memory,) if memory is not None else ()),
                ),
                "write the memory before the submission, or let a command that is ordered before write it",
            )
        )


def analyse(folder: Path, *, as_device: bool = False, waste: bool = False) -> Findings:
    """Return the findings of the run whose notes lie in `folder`."""
    return Analysis(Notebook(folder), as_device=as_device, waste=waste).run()
