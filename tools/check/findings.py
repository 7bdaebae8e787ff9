"""Findings: what is wrong, where, who else was involved, and what would mend it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

_NUMBERS = re.compile(r"(?<=bytes )[\d,]+ to [\d,]+|(?<=command )\d+|(?<=byte )[\d,]+")
Frames = tuple[str, ...]
"""A place in a program: `file:line function`, innermost first."""


class Kind(enum.StrEnum):
    """The kind of a finding; its value is its name in files and suppressions."""

    RACE = "race"
    HOST_ACCESS = "host-access-in-flight"
    LIST_ORDER = "list-order"
    UNINITIALISED = "uninitialised-read"
    USE_AFTER_FREE = "use-after-free"
    FREED_IN_FLIGHT = "freed-in-flight"
    DESTROYED_IN_FLIGHT = "destroyed-in-flight"
    RESET_IN_FLIGHT = "reset-in-flight"
    NEVER_SIGNALLED = "never-signalled"
    DEADLOCK = "deadlock"
    LOST_WAKE_UP = "lost-wake-up"
    FENCE_TWICE = "fence-waited-twice"
    UNWRITTEN_OUTPUT = "unwritten-output"
    OUT_OF_BOUNDS = "out-of-bounds"
    FOREIGN_HANDLE = "foreign-handle"
    LEAK = "leak"
    UNUSED_MEMORY = "unused-memory"
    RECORDED_AGAIN = "recorded-again"
    COPIED_AGAIN = "copied-again"
    AVOIDABLE_COPY = "avoidable-copy"
    SERIAL_WAITS = "serial-waits"


MEANING: dict[Kind, str] = {
    Kind.RACE: "Two accesses to the same bytes, one a write, that nothing orders.",
    Kind.HOST_ACCESS: "The program uses memory that the device may be using, before it waits.",
    Kind.LIST_ORDER: "Two commands of one list use the same bytes, and no barrier or event orders them.",
    Kind.UNINITIALISED: "The device reads bytes that neither host nor device wrote.",
    Kind.USE_AFTER_FREE: "A submission uses memory that was freed before.",
    Kind.FREED_IN_FLIGHT: "Memory is freed while the device may still use it.",
    Kind.DESTROYED_IN_FLIGHT: "An object is destroyed while the device may still use it.",
    Kind.RESET_IN_FLIGHT: "A command list is reset while the device may still execute it.",
    Kind.NEVER_SIGNALLED: "A command waits for an event that nothing signals.",
    Kind.DEADLOCK: "Queues wait for each other's events, or programs for each other's semaphores.",
    Kind.LOST_WAKE_UP: "An event is reset while a command may still have to see its signal.",
    Kind.FENCE_TWICE: "A fence that has signalled before is waited for in place of a later submission.",
    Kind.UNWRITTEN_OUTPUT: "The program reads the output of a list that has not run.",
    Kind.OUT_OF_BOUNDS: "The program or a command passes the end of its memory.",
    Kind.FOREIGN_HANDLE: "A process uses an object of the process off which it was forked.",
    Kind.LEAK: "The program ends and has not destroyed what it made.",
    Kind.UNUSED_MEMORY: "No submission uses the memory.",
    Kind.RECORDED_AGAIN: "A list is recorded again with the same commands, when the one before is over.",
    Kind.COPIED_AGAIN: "A copy writes the bytes that are there already.",
    Kind.AVOIDABLE_COPY: "A copy feeds or empties an inference that could use the other memory itself.",
    Kind.SERIAL_WAITS: "Each submission comes after the wait for the one before.",
}
WASTE: frozenset[Kind] = frozenset(
    {Kind.UNUSED_MEMORY, Kind.RECORDED_AGAIN, Kind.COPIED_AGAIN, Kind.AVOIDABLE_COPY, Kind.SERIAL_WAITS}
)
"""Kinds that are right, but cost time or memory: found only if asked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """One party of a finding: what it does, in which process, and from where."""

    what: str
    process: str
    frames: Frames = ()


@dataclass(slots=True)
class Finding:
    """One cause. `count`: how often it was met. `mend`: what would have prevented it."""

    kind: Kind
    title: str
    places: tuple[Place, ...]
    mend: str
    count: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal for findings with one cause: a loop appends many commands at one place."""
        return self.kind, tuple((_NUMBERS.sub("", place.what), place.frames) for place in self.places)


@dataclass(slots=True)
class Findings:
    """All findings, each cause once, and what the analysis could not see."""

    found: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    submissions: int = 0

    def add(self, finding: Finding) -> None:
        """Add a finding, or count it if its cause is known."""
        known = self.found.setdefault(finding.key, finding)
        if known is not finding:
            known.count += 1
