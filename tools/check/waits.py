"""Waits that do not end: of commands for events, of programs for semaphores; and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from softnpu.emulator.interface import check_notes as notes
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from softnpu.tools.check.notebook import Notebook
from softnpu.tools.check.work import NEVER, Work, command_place

_SHOWN = 4


class Waits:
    """Judges submissions that still wait at the end. `signalled`: the events that are signalled then."""

    def __init__(
        self,
        book: Notebook,
        work: Collection[Work],
        signalled: Collection[tuple[str, int]],
        findings: Findings,
    ) -> None:
        self._book = book
        self._findings = findings
        self._heads: dict[tuple[int, int], Work] = {}  # what each queue is at
        self._signallers: dict[tuple[str, int], tuple[Work, int]] = {}  # by event: what is still to signal it
        over: dict[tuple[int, int], int] = defaultdict(int)  # the last submission of a queue that is over
        for each in work:
            queue = each.session, each.queue
            ended = each.done or each.failure or (*queue, each.sequence) in book.failed
            if ended or each.program is not None:
                # what has begun is the first that is not over
                over[queue] = max(over[queue], each.sequence if ended else each.sequence - 1)
        for each in sorted(work, key=lambda each: each.sequence):
            if each.sequence <= over[each.session, each.queue]:
                continue
            self._heads.setdefault((each.session, each.queue), each)
            for number, memory, offset in book.signals.get((each.session, *each.recording), ()):
                event = book.events.get((each.session, memory, offset))
                if event is not None and number >= each.position:
                    self._signallers.setdefault(event, (each, number))
        self._stuck = {
            id(each): event
            for each in self._heads.values()
            if (event := awaited(each)) is not None and event not in signalled
        }

    def judge(self, lost: Collection[tuple[int, int, int]]) -> None:
        """Add each wait that does not end; those of `lost` wake-ups are known."""
        in_cycle: set[int] = set()
        for work in self._heads.values():
            if id(work) in self._stuck and id(work) not in in_cycle:
                cycle = self._cycle(work)
                in_cycle.update(id(each) for each in cycle)
                if cycle:
                    self._deadlock(cycle)
        for work in self._heads.values():
            known = id(work) in in_cycle or (work.session, work.queue, work.sequence) in lost
            if id(work) in self._stuck and not known and self._next(work) is None:
                self._never(work)
        Semaphores(self._book, self._findings).judge()

    def _next(self, work: Work) -> Work | None:
        """Return the waiting submission that would have to go on for this one's event to be signalled."""
        signaller = self._signallers.get(self._stuck[id(work)])
        if signaller is None:
            return None
        head = self._heads[signaller[0].session, signaller[0].queue]
        return head if id(head) in self._stuck else None

    def _cycle(self, work: Work) -> list[Work]:
        path: list[Work] = []
        at: Work | None = work
        while at is not None and not any(each is at for each in path):
            path.append(at)
            at = self._next(at)
        start = next((index for index, each in enumerate(path) if each is at), None)
        return [] if start is None else path[start:]

    def _deadlock(self, cycle: list[Work]) -> None:
        places: list[Place] = []
        for work in cycle:
            signaller, number = self._signallers[self._stuck[id(work)]]
            places.append(_waiting(self._book, work))
            calls = self._book.calls.get((signaller.session, *signaller.recording), ())
            call, frames = calls[number] if number < len(calls) else ("a command", ())
            what = f"its event would be signalled by {call}, command {number} of a list that waits itself"
            places.append(Place(what, self._book.process(signaller.session), frames))
        title = (
            f"{len(cycle)} queues wait for each other"
            if len(cycle) > 1
            else "a queue waits for an event that a command behind the wait signals"
        )
        mend = "signal before the wait, or give what signals a queue of its own"
        self._findings.add(Finding(Kind.DEADLOCK, title, (*places, *self._in_vain(cycle)), mend))

    def _never(self, work: Work) -> None:
        victims = [
            each for each in self._heads.values() if id(each) in self._stuck and self._next(each) is work
        ]
        places = (
            _waiting(self._book, work),
            *(_waiting(self._book, each) for each in victims[:_SHOWN]),
            *self._in_vain([work, *victims]),
        )
        self._findings.add(
            Finding(
                Kind.NEVER_SIGNALLED,
                "a command waits for an event that nothing has signalled",
                places,
                "submit the signaller, or signal the event on the host, before the device's limit",
            )
        )

    def _in_vain(self, stuck: list[Work]) -> Iterator[Place]:
        """Yield what programs waited for meanwhile."""
        queues = {(work.session, work.queue): work.submitted_ns for work in stuck}
        found: dict[tuple[str, str], Place] = {}
        for file, note in self._book.in_vain:
            if note.t > queues.get((note.session, note.queue), NEVER):
                process = self._book.process(note.session)
                place = Place(
                    f"{note.call} waits for it in vain", process, self._book.frames(file, note.site)
                )
                found.setdefault((note.call, "".join(place.frames)), place)
        yield from list(found.values())[:_SHOWN]


def awaited(work: Work) -> tuple[str, int] | None:
    """Return the event that a submission waits for, if that is its next command."""
    commands = () if work.program is None else work.program.commands
    if work.position >= len(commands) or commands[work.position].kind != "EventWait":
        return None
    at = commands[work.position].event
    return None if at is None else (at.file, at.start)


def _waiting(book: Notebook, work: Work) -> Place:
    assert work.program is not None
    at = work.program.commands[work.position].event
    assert at is not None
    return command_place(book, work, work.position, at, write=False)


Wait = tuple[int, str]
"""A wait for a semaphore: the session, and the name."""


class Semaphores:
    """Programs that wait for each other's semaphores."""

    def __init__(self, book: Notebook, findings: Findings) -> None:
        self._book = book
        self._findings = findings
        self._stuck: dict[Wait, tuple[str, notes.Semaphore]] = {}  # waits that have not ended well
        self._ended: set[Wait] = set()  # which of them gave up
        self._signallers: dict[str, set[int]] = defaultdict(set)
        for file, note in book.semaphores:
            wait = note.session, note.name
            if note.what == "wait":
                self._stuck[wait] = file, note
                self._ended.discard(wait)
            elif note.what == "gave up":
                self._ended.add(wait)
            elif note.what == "arrived":
                self._stuck.pop(wait, None)
            else:
                self._signallers[note.name].add(note.session)
                for each in [each for each in self._stuck if each[1] == note.name]:
                    del self._stuck[each]

    def judge(self) -> None:
        """Add programs that wait for each other."""
        known: set[Wait] = set()
        for wait in self._stuck:
            path = [wait]
            while (following := self._next(path[-1])) is not None and following not in path:
                path.append(following)
            if following is None or following in known:
                continue
            cycle = path[path.index(following) :]
            known.update(cycle)
            title = f"{len(cycle)} programs wait for each other"
            mend = "signal what the other waits for before waiting, or begin with a value of 1"
            places = tuple(self._place(*each) for each in cycle)
            self._findings.add(Finding(Kind.DEADLOCK, title, places, mend))

    def _place(self, session: int, name: str) -> Place:
        file, note = self._stuck[session, name]
        frames = self._book.frames(file, note.site)
        return Place(f"waits for semaphore {name!r}", self._book.process(session), frames)

    def _next(self, wait: Wait) -> Wait | None:
        """Return the wait of the program that would signal this one's semaphore.

        That is who has signalled it so far, if all of these wait. Of a semaphore that nobody has signalled
        yet, it may be any program that waits without end.
        """
        signallers = self._signallers[wait[1]]
        if signallers:
            waits = [each for each in self._stuck if each[0] in signallers]
            return waits[0] if {each[0] for each in waits} == signallers else None
        if wait in self._ended:
            return None
        return next((each for each in self._stuck if each[0] != wait[0] and each not in self._ended), None)
