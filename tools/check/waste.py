"""Waste: what is right, and costs time or memory that it need not. Found only if asked for."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from softnpu.emulator.interface.check_notes import Access, Command
from softnpu.tools.check.findings import Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.notebook import Notebook, Object
from softnpu.tools.check.work import Work, accesses, command_place, overlap

_AGAIN: Final = 3
"""What happens so often happens again and again."""
_IN_A_ROW: Final = 8


class Waste:
    """Looks at all submissions at the end."""

    def __init__(self, book: Notebook, work: Collection[Work], findings: Findings) -> None:
        self._book = book
        self._work = sorted(work, key=lambda each: each.submitted_ns)
        self._findings = findings

    def judge(self) -> None:
        """Add what could be spared."""
        self._judge_memory()
        self._judge_lists()
        self._judge_repeated_copies()
        self._judge_staging()
        self._judge_waits()

    def _judge_memory(self) -> None:
        """Add memory that no submission uses, unless one is unknown, or another program may use it."""
        unknown = {work.session for work in self._work if work.program is None}
        used = {
            (work.session, access.memory)
            for work in self._work
            for command in _commands(work)
            for access, _ in accesses(command)
        }
        unused: dict[Frames, list[tuple[int, Object]]] = defaultdict(list)
        for (session, kind, number), thing in self._book.objects.items():
            is_known = session not in unknown and not thing.shared
            if kind == "memory" and is_known and (session, number) not in used:
                unused[thing.frames].append((session, thing))
        for frames, things in unused.items():
            size = sum(thing.size for _, thing in things)
            place = Place("allocated", self._book.process(things[0][0]), frames)
            title = f"no submission uses the memory: {size:,} bytes in all"
            self._add(Kind.UNUSED_MEMORY, title, (place,), "allocate it when it is needed", len(things))

    def _judge_lists(self) -> None:
        """Add lists with the same bytes, recorded at the same places when the one before was over."""
        alike: dict[tuple[object, ...], list[Work]] = defaultdict(list)
        for work in self._work:
            calls = self._book.calls.get((work.session, *work.recording), ())
            if work.program is not None and work.program.digest and calls:
                key = work.session, work.program.digest, calls
                if not alike[key] or alike[key][-1].recording != work.recording:
                    alike[key].append(work)
        for works in alike.values():
            ready = sum(
                before.completed_ns < work.submitted_ns and self._is_recorded(before, work)
                for before, work in itertools.pairwise(works)
            )
            if ready + 1 >= _AGAIN:
                call, frames = self._book.calls[works[0].session, *works[0].recording][0]
                process = self._book.process(works[0].session)
                title = f"a list is recorded again with the same {len(_commands(works[0]))} commands"
                mend = "record it once, and submit it again"
                self._add(Kind.RECORDED_AGAIN, title, (Place(call, process, frames),), mend, ready)

    def _is_recorded(self, before: Work, work: Work) -> bool:
        """Return whether the program has recorded the second one; a mutable list changes by itself."""
        made = self._book.objects.get((work.session, "list", work.recording[0]))
        if before.recording[0] != work.recording[0] or made is None:
            return before.recording[0] != work.recording[0]
        return any(before.submitted_ns < t < work.submitted_ns for t, _ in made.resets)

    def _judge_repeated_copies(self) -> None:
        by_number = {(work.session, work.queue, work.sequence): work for work in self._work}
        idle: dict[Place, int] = defaultdict(int)
        for note in self._book.unchanged:
            work = by_number.get((note.session, note.queue, note.sequence))
            if work is not None and note.command < len(_commands(work)):
                target = _commands(work)[note.command].writes[0]
                idle[command_place(self._book, work, note.command, target, write=True)] += 1
        for place, count in idle.items():
            if count >= _AGAIN:
                title = "a copy writes the bytes that are there already"
                self._add(Kind.COPIED_AGAIN, title, (place,), "copy when the source has changed", count)

    def _judge_staging(self) -> None:
        """Add copies to an input, and from an output, of an inference of the same list."""
        for work in self._work:
            commands = _commands(work)
            for number, command in enumerate(commands):
                if command.kind == "GraphExecute":
                    for access, write in accesses(command):
                        self._judge_argument(work, number, access, write)

    def _judge_argument(self, work: Work, number: int, argument: Access, write: bool) -> None:
        """Look for the copy next to an argument that brings it, or takes it away."""
        commands = _commands(work)
        others = range(number + 1, len(commands)) if write else range(number - 1, -1, -1)
        for other in others:
            if not any(overlap(argument, access) for access, _ in accesses(commands[other])):
                continue
            command = commands[other]
            own = command.reads[:1] if write else command.writes[:1]
            if command.kind != "Copy" or not own or not _covers(own[0], argument):
                return
            far = command.writes[0] if write else command.reads[0]
            between = commands[min(number, other) + 1 : max(number, other)]
            if any(overlap(far, access) for each in between for access, _ in accesses(each)):
                return
            title = f"a copy {'takes away an output' if write else 'brings an input'} of an inference"
            places = (
                command_place(self._book, work, other, far, write=write),
                command_place(self._book, work, number, argument, write=write),
            )
            mend = "let the inference use that memory itself, if nothing else needs it meanwhile"
            self._add(Kind.AVOIDABLE_COPY, title, places, mend)
            return

    def _judge_waits(self) -> None:
        """Add places that submit to an idle device again and again, having waited for the last."""
        after: dict[tuple[int, Frames], int] = defaultdict(int)
        last_end: dict[int, int] = {}
        for work in self._work:
            end = last_end.get(work.session)
            key = work.session, work.site
            if end is not None and after[key] >= 0:
                after[key] = after[key] + 1 if end < work.submitted_ns else -1
            last_end[work.session] = max(work.completed_ns, end or 0)
        for (session, frames), count in after.items():
            if count >= _IN_A_ROW:
                place = Place("submitted", self._book.process(session), frames)
                title = "each submission comes after the wait for the one before"
                mend = "submit the next one before that wait, if it does not need the result"
                self._add(Kind.SERIAL_WAITS, title, (place,), mend, count)

    def _add(self, kind: Kind, title: str, places: tuple[Place, ...], mend: str, count: int = 1) -> None:
        self._findings.add(Finding(kind, title, places, mend, count))


def _commands(work: Work) -> tuple[Command, ...]:
    return () if work.program is None else work.program.commands


def _covers(whole: Access, part: Access) -> bool:
    return whole.file == part.file and whole.start <= part.start and part.end <= whole.end
