"""Waste: what is right, and costs time or memory that it need not. Found only if asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from softnpu.tools.check.findings import Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.notebook import Notebook, Object
from softnpu.tools.check.work import Work, accesses


class Waste:
    """Looks at all submissions at the end."""

    def __init__(self, book: Notebook, work: Collection[Work], findings: Findings) -> None:
        self._book = book
        self._work = work
        self._findings = findings

    def judge(self) -> None:
        """Add what could be spared."""
        self._judge_memory()

    def _judge_memory(self) -> None:
        """Add memory that no submission uses, unless one is unknown, or another program may use it."""
        unknown = {work.session for work in self._work if work.program is None}
        used = {
            (work.session, access.memory)
            for work in self._work
            for command in (() if work.program is None else work.program.commands)
            for access, _ in accesses(command)
        }
        unused: dict[Frames, list[tuple[int, Object]]] = defaultdict(list)
        for (session, kind, number), thing in self._book.objects.items():
            is_known = session not in unknown and not thing.shared
            if kind == "memory" and is_known and (session, number) not in used:
                unused[thing.frames].append((session, thing))
        for frames, things in unused.items():
            size = sum(thing.size for _, thing in things)
            self._findings.add(
                Finding(
                    Kind.UNUSED_MEMORY,
                    f"no submission uses the memory: {size:,} bytes in all",
                    (Place("allocated", self._book.process(things[0][0]), frames),),
                    "allocate it when it is needed, or not at all",
                    count=len(things),
                )
            )
