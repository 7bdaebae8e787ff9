"""Notes of `softnpu check`: what drivers and engines write down for the analysis, as lines of JSON.

Each process appends to files of its own in the folder that `SOFTNPU_CHECK` names in the environment of the
daemon, of which its clients learn it. A line is written by one system call, so that a killed process leaves
whole lines. Times are CLOCK_MONOTONIC in nanoseconds; they order the notes of all processes of a machine.
"""

from __future__ import annotations

import enum
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

UNWRITTEN: Final = 0xA5C3F00D_5EED1E55
"""What a driver writes into each 8 bytes of fresh memory: who finds it there reads what nobody wrote."""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="n"):
    """One line. `t`: when."""

    t: int


class Session(Note, frozen=True, tag="session"):
    """A driver has connected: the process, and its number in the daemon. `file`: of a program in C++."""

    session: int
    pid: int
    program: str
    file: str = ""


class Site(Note, frozen=True, tag="site"):
    """A place in a program: frames `file:line function`, innermost first. Others refer to its number."""

    site: int
    frames: tuple[str, ...]


class Made(Note, frozen=True, tag="made"):
    """An object exists. `kind`: memory, list, queue, fence, event, graph or context; `id` by the driver.

    `size` and `address` are those of memory in the program; `memory` and `offset` say where an event lies;
    `parent` is the context of a queue, the pool of an event. `shared`: other programs may use the memory.
    """

    session: int
    kind: str
    id: int
    site: int
    size: int = 0
    address: int = 0
    memory: int = 0
    offset: int = 0
    parent: int = 0
    shared: bool = False


class Ended(Note, frozen=True, tag="ended"):
    """The program has destroyed or freed an object; `reset`: it has emptied a list instead.

    `by_itself`: the program has not said so; it has ended with its owner, or Python has collected it.
    """

    session: int
    kind: str
    id: int
    site: int
    reset: bool = False
    by_itself: bool = False


class Exit(Note, frozen=True, tag="exit"):
    """The program ends in order; its language destroys nothing by itself. Its last notes may follow."""


class Why(enum.IntEnum):
    """Why an access of the program was noted; the numbers of `driver/native/guard/access_watch.cpp`."""

    READ_ONLY = 1
    IN_FLIGHT = 2
    FREED = 3
    UNWRITTEN = 4
    BEYOND = 5


class Touched(Note, frozen=True, tag="touched"):
    """The program has used memory at an address of its own that it should not use, for this reason."""

    address: int
    write: bool
    why: Why
    frames: tuple[str, ...]


class Overrun(Note, frozen=True, tag="overrun"):
    """Memory was freed at `site`, and behind its end the program has written: at byte `first` of it."""

    session: int
    memory: int
    first: int
    site: int


class OutOfBounds(Note, frozen=True, tag="out_of_bounds"):
    """A command was appended that uses bytes from `offset` to `end` of memory of `size` bytes."""

    session: int
    memory: int
    offset: int
    end: int
    size: int
    write: bool
    call: str
    site: int


class Recorded(Note, frozen=True, tag="recorded"):
    """A list was closed, as number `recording`: for each of its commands the call and its site.

    `signals`: commands that signal an event, with the event's memory and offset.
    """

    session: int
    list: int
    recording: int
    calls: tuple[tuple[str, int], ...]
    signals: tuple[tuple[int, int, int], ...] = ()


class Submitted(Note, frozen=True, tag="submitted"):
    """Submissions from `first` on are about to be visible to the device, one for each of `recordings`."""

    session: int
    queue: int
    first: int
    recordings: tuple[tuple[int, int], ...]
    site: int
    fence: int = 0


class Completed(Note, frozen=True, tag="completed"):
    """The program knows that the queue's submissions up to `sequence` have ended."""

    session: int
    queue: int
    sequence: int


class Cancelled(Note, frozen=True, tag="cancelled"):
    """The program has cancelled a submission."""

    session: int
    queue: int
    sequence: int


class Rewaited(Note, frozen=True, tag="rewaited"):
    """The program has waited for a fence whose signal, for submission `sequence`, it knew already."""

    session: int
    queue: int
    sequence: int
    site: int


class TimedOut(Note, frozen=True, tag="timed_out"):
    """From `since` on the program has waited in vain with this call, for submission `sequence` of a queue."""

    session: int
    since: int
    call: str
    queue: int
    sequence: int
    site: int


class Semaphore(Note, frozen=True, tag="semaphore"):
    """What the program does with a named semaphore: `wait`, `arrived`, `gave up` or `signal`."""

    session: int
    name: str
    what: str
    site: int


class ForeignHandle(Note, frozen=True, tag="foreign_handle"):
    """Process `pid` has used an object of `parent`, off which it was forked."""

    pid: int
    parent: int
    program: str
    call: str
    kind: str
    site: int


class HostEvent(Note, frozen=True, tag="event"):
    """The host has signalled or reset an event, or `seen` it signalled; `id` is its event's."""

    session: int
    id: int
    memory: int
    offset: int
    what: str
    site: int


class Access(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of client memory: the allocation's handle, and where they lie in which file.

    `name`: of the argument, if it is one. `dynamic`: it may use fewer bytes than these.
    """

    memory: int
    offset: int
    file: str
    start: int
    end: int
    name: str = ""
    dynamic: bool = False


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A command: `step` is its step in the engine's program, `event` what it signals, resets or waits for."""

    kind: str
    step: int
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    event: Access | None = None
    graph: int = 0
    model: str = ""


class Program(Note, frozen=True, tag="program"):
    """A decoded command buffer, of this process. `digest`: of its bytes."""

    program: int
    commands: tuple[Command, ...]
    digest: str = ""


class Turn(Note, frozen=True, tag="turn"):
    """The engine begins or continues a submission at step `first`."""

    session: int
    queue: int
    sequence: int
    program: int
    first: int


class TurnEnd(Note, frozen=True, tag="turn_end"):
    """It has run the steps before `last`. `done`: all. `failure`: why it failed."""

    last: int
    done: bool
    failure: str = ""


class Failed(Note, frozen=True, tag="failed"):
    """The engine ends a submission with an error, maybe before its first command."""

    session: int
    queue: int
    sequence: int


class Signalled(Note, frozen=True, tag="signalled"):
    """The running submission has signalled the event at this place."""

    file: str
    start: int


class Unwritten(Note, frozen=True, tag="unwritten"):
    """Command `command` of the submission is about to read `count` bytes, from `first` on, nobody wrote."""

    session: int
    queue: int
    sequence: int
    command: int
    access: Access
    first: int
    count: int


class Unchanged(Note, frozen=True, tag="unchanged"):
    """Command `command` of the submission, a copy, is about to write the bytes that are there already."""

    session: int
    queue: int
    sequence: int
    command: int


AnyNote = (
    Session | Site | Made | Ended | Exit | Touched | Overrun | OutOfBounds | Recorded | Submitted | Completed
    | Cancelled | Rewaited | TimedOut | Semaphore | ForeignHandle | HostEvent
    | Program | Turn | TurnEnd | Failed | Signalled | Unwritten | Unchanged
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyNote] = msgspec.json.Decoder(AnyNote)


class NoteFile:
    """The notes of this process, from any of its threads. `key`: what no other process has in its names."""

    def __init__(self, directory: Path, role: str) -> None:
        # pids are used again
        self.key = f"{os.getpid()}-{time.monotonic_ns()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(directory / f"{role}-{self.key}.jsonl", flags, 0o600)
        self._lock = threading.Lock()
        self._is_full = False

    def close(self) -> None:
        """Close the file; what is written from now on is dropped."""
        with self._lock:
            self._is_full = True
            os.close(self._fd)

    def write(self, note: AnyNote) -> None:
        """Append a note. A full disk ends the notes, not the program, which says so on stderr."""
        line = _encoder.encode(note) + b"\n"
        with self._lock:
            try:
                while line and not self._is_full:
                    line = line[os.write(self._fd, line) :]
            except OSError as error:
                self._is_full = True
                print(f"softnpu check: what follows is not checked: {error}", file=sys.stderr)


_FRAME: Final = re.compile(r'\s*File "(.*)", line (\d+) in (.*)')

_ADDRESS: Final = re.compile(r"(\S.*)\((?:([^+)]+)\+0x[0-9a-f]+|\+(0x[0-9a-f]+))\).*")
_NOT_SHOWN: Final = ("libsoftnpu_guard.so", "libze_softnpu.so", "libze_loader.so.1", "libc.so.6")


def read_touched(text: str) -> Iterator[Touched]:
    """Yield what the program has touched: lines of `driver/native/guard/access_watch.cpp`."""
    head: list[int] = []
    frames: list[str] = []
    for line in (*text.splitlines(), "@"):
        if not line.startswith("@"):
            if found := _FRAME.fullmatch(line):
                frames.append(f"{found[1]}:{found[2]} {found[3]}")
            elif (found := _ADDRESS.fullmatch(line)) and not found[1].endswith(_NOT_SHOWN):
                # below the innermost frame addresses are those to return to
                offset = found[3] and hex(int(found[3], 16) - (1 if frames else 0))
                frames.append(f"{found[1]}+{offset} ?" if offset else f"{found[1]} {found[2]}")
            continue
        if len(head) == 4:
            t, address, write, mode = head
            yield Touched(t=t, address=address, write=write == 1, why=Why(mode), frames=tuple(frames))
        head, frames = [int(word) for word in line[1:].split()], []


def read(text: bytes) -> Iterator[AnyNote]:
    """Yield the notes in whole lines."""
    return map(_decoder.decode, text.splitlines())
