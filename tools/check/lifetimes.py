"""What is wrong with the lifetimes of objects, and with the program's own accesses."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import softnpu.driver
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access
from softnpu.tools.check.findings import Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.notebook import Notebook
from softnpu.tools.check.work import Work, accesses, command_place


class Lifetimes:
    """Compares times: of submissions, of their known ends, of what the program does meanwhile."""

    def __init__(self, book: Notebook, work: Collection[Work], findings: Findings) -> None:
        self._book = book
        self._work = work
        self._findings = findings

    def judge(self) -> None:
        """Add what is wrong with objects and accesses of the host: it stays wrong whatever comes."""
        self._judge_objects()
        self._judge_host()

    def _judge_objects(self) -> None:
        for work in self._work:
            for kind, number, what in self._users(work):
                thing = self._book.objects.get((work.session, kind, number))
                if thing is None:
                    continue
                for t, frames in thing.resets:
                    if work.submitted_ns < t < work.completed_ns:
                        self._ended(Kind.RESET_IN_FLIGHT, work, what, thing.frames, "reset", t, frames)
                if thing.ended_ns is None:
                    continue
                if thing.ended_ns < work.submitted_ns and kind == "memory":
                    t, frames = thing.ended_ns, thing.ended
                    self._ended(Kind.USE_AFTER_FREE, work, what, thing.frames, "freed", t, frames)
                elif work.submitted_ns < thing.ended_ns < work.completed_ns:
                    freed = kind == "memory"
                    found = Kind.FREED_IN_FLIGHT if freed else Kind.DESTROYED_IN_FLIGHT
                    verb = "freed" if freed else "destroyed"
                    self._ended(found, work, what, thing.frames, verb, thing.ended_ns, thing.ended)

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
            for access, write in accesses(command):
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

    def _ended(
        self, kind: Kind, work: Work, what: str, made: Frames, verb: str, t: int, ended: Frames
    ) -> None:
        process = self._book.process(work.session)
        before = kind is Kind.USE_AFTER_FREE
        title = f"a submission uses {what} after it was {verb}" if before else f"{what} is {verb} in flight"
        places = (
            Place(f"{verb}", process, ended),
            Place("submitted", process, work.site),
            Place("made", process, made),
        )
        mend = (
            "record the list again without it"
            if before
            else "wait for the submission first: its fence, its queue, or an event that it signals last"
        )
        self._add_in_flight(work, t, Finding(kind, title, places, mend))

    def _add_in_flight(self, work: Work, t: int, finding: Finding) -> None:
        """Add a finding; if the program has waited for an earlier submission instead, that is its cause."""
        for waited_ns, sequence, frames in self._book.rewaits[work.session, work.queue]:
            if work.submitted_ns < waited_ns < t and sequence < work.sequence:
                process = self._book.process(work.session)
                what = f"waited, for a fence that had signalled before, {work.sequence - sequence} earlier"
                finding = replace(
                    finding,
                    kind=Kind.FENCE_TWICE,
                    title=f"{finding.title}: the fence had signalled for an earlier submission",
                    places=(Place(what, process, frames), *finding.places),
                    mend="give the submission a fence of its own, or reset the fence and submit it again",
                )
                break
        self._findings.add(finding)

    def _judge_host(self) -> None:
        """Compare what the program touched with what was in flight then."""
        for t, file, note in self._book.lines:
            if not isinstance(note, notes.Touched):
                continue
            beyond = note.why is notes.Why.BEYOND
            near = self._book.memory_near if beyond else self._book.memory_at
            found = near(file, t, note.address)
            if found is None:
                continue
            session, handle, memory = found
            frames = _outside(note.frames)
            verb = "writes" if note.write else "reads"
            at = note.address - memory.address
            of = f" of {memory.size:,}" if beyond else ""
            host = Place(f"the program {verb} byte {at:,}{of}", self._book.process(session), frames)
            made = Place("made", self._book.process(session), memory.frames)
            if beyond:
                title = f"the program {verb} outside of its memory"
                mend = "stay inside of the allocation"
                self._findings.add(Finding(Kind.OUT_OF_BOUNDS, title, (host, made), mend))
                continue
            if note.why is notes.Why.UNWRITTEN:
                title = "the program reads an output that no command has written"
                mend = "execute the list that writes it, and wait for its end"
                self._findings.add(Finding(Kind.UNWRITTEN_OUTPUT, title, (host, made), mend))
                continue
            ended = self._book.end_of(session, memory)
            if note.why is notes.Why.FREED and ended.ended_ns is not None and ended.ended_ns < t:
                freed = Place("freed", self._book.process(session), ended.ended)
                title = f"the program {verb} memory after it was freed"
                mend = "free it after the last use"
                self._findings.add(Finding(Kind.USE_AFTER_FREE, title, (host, freed, made), mend))
                continue
            for work in self._work:
                if work.session == session and work.submitted_ns < t < work.completed_ns:
                    self._host_access(work, handle, at, note, (host, made))

    def _host_access(
        self, work: Work, handle: int, at: int, note: notes.Touched, places: tuple[Place, Place]
    ) -> None:
        for number, command in enumerate(() if work.program is None else work.program.commands):
            for access, write in accesses(command):
                inside = access.offset <= at < access.offset + access.end - access.start
                if access.memory == handle and inside and (write or note.write):
                    verb, does = ("writes" if each else "reads" for each in (note.write, write))
                    host, made = places
                    self._add_in_flight(
                        work,
                        note.t,
                        Finding(
                            Kind.HOST_ACCESS,
                            f"the program {verb} memory that a command in flight {does}",
                            (host, command_place(self._book, work, number, access, write), made),
                            "wait for the submission first: its fence, its queue, or an event",
                        ),
                    )
                    return


def _outside(frames: Frames) -> Frames:
    """Return the frames from the innermost one on that is not of this package."""
    ours = f"{Path(softnpu.driver.__file__ or '').parent}"
    return tuple(frame for frame in frames if not frame.startswith(ours)) or frames
