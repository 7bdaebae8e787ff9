"""A submission in the analysis, and how its commands are described."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access, Command
from softnpu.tools.check.clocks import Clock
from softnpu.tools.check.findings import Frames, Place
from softnpu.tools.check.notebook import Notebook

_EVENT_USES: Final = {"EventWait": "waits", "EventSignal": "signals", "EventReset": "resets"}
NEVER: Final = 1 << 63


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
    completed_ns: int = NEVER
    program: notes.Program | None = None
    position: int = 0
    done: bool = False
    failure: str = ""
    end: Clock = field(default_factory=dict)

    @property
    def has_run(self) -> bool:
        """Whether every command is over: the last may tell the program so before the engine says it."""
        return self.done or (self.program is not None and 0 < self.position == len(self.program.commands))


def accesses(command: Command) -> Iterator[tuple[Access, bool]]:
    """Yield what a command uses, and whether it writes that."""
    return itertools.chain(
        ((access, True) for access in command.writes), ((access, False) for access in command.reads)
    )


def overlap(one: Access, other: Access) -> bool:
    """Return whether both have a byte in common."""
    return one.file == other.file and one.start < other.end and other.start < one.end


def command_place(book: Notebook, work: Work, number: int, access: Access, write: bool) -> Place:
    """Describe a command: what it does to which bytes, and where it was appended and submitted."""
    command = None if work.program is None else work.program.commands[number]
    calls = book.calls.get((work.session, *work.recording), ())
    call, frames = calls[number] if number < len(calls) else ("a command", ())
    use = None if command is None else _EVENT_USES.get(command.kind)
    what = f"{call} {use or ('writes' if write else 'reads')}"
    size = access.end - access.start
    if use is None:
        what += f" bytes {access.offset:,} to {access.offset + size - 1:,}"
    if access.name:
        what += f" argument '{access.name}' of '{'' if command is None else command.model}'"
    submitted = f"submitted at {work.site[0]}" if work.site else "submitted somewhere"
    return Place(f"{what}, command {number} of a list {submitted}", book.process(work.session), frames)
