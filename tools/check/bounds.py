"""What passes the end of an allocation, and handles of another process."""

from __future__ import annotations

from softnpu.emulator.interface import check_notes as notes
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from softnpu.tools.check.notebook import Notebook, Object


def judge_bounds(book: Notebook, findings: Findings) -> None:
    """Add commands and frees that drivers have found to be out of bounds, and foreign handles."""
    for _, file, note in book.lines:
        match note:
            case notes.OutOfBounds():
                findings.add(_command(book, file, note))
            case notes.Overrun():
                findings.add(_overrun(book, file, note))
            case notes.ForeignHandle():
                findings.add(_foreign(book, file, note))
            case _:
                pass


def _command(book: Notebook, file: str, note: notes.OutOfBounds) -> Finding:
    verb = "writes" if note.write else "reads"
    process = book.process(note.session)
    what = f"{note.call} {verb} bytes {note.offset:,} to {note.end - 1:,} of {note.size:,}"
    places = [Place(what, process, book.frames(file, note.site))]
    memory = book.objects.get((note.session, "memory", note.memory))
    if (made := book.memory(note.session, note.memory)) is not None:
        places.append(made)
    if memory is not None:
        found = book.memory_at(file, note.t, memory.address + note.end - 1)
        if found is not None and found[2] is not memory and _is_alive(book, found[0], found[2], note.t):
            places.append(Place("the allocation that it reaches, made", process, found[2].frames))
    return Finding(
        Kind.OUT_OF_BOUNDS,
        f"a command {verb} {note.end - max(note.size, note.offset):,} bytes behind the end of its memory",
        tuple(places),
        "stay inside of one allocation: the device refuses the submission",
    )


def _is_alive(book: Notebook, session: int, memory: Object, t: int) -> bool:
    ended_ns = book.end_of(session, memory).ended_ns
    return ended_ns is None or ended_ns > t


def _overrun(book: Notebook, file: str, note: notes.Overrun) -> Finding:
    process = book.process(note.session)
    freed = Place(f"found when it was freed: byte {note.first:,}", process, book.frames(file, note.site))
    made = book.memory(note.session, note.memory)
    return Finding(
        Kind.OUT_OF_BOUNDS,
        "the program has written behind the end of memory",
        (freed, *((made,) if made is not None else ())),
        "write fewer bytes, or allocate more",
    )


def _foreign(book: Notebook, file: str, note: notes.ForeignHandle) -> Finding:
    who = f"{note.program} ({note.pid})"
    return Finding(
        Kind.FOREIGN_HANDLE,
        f"a process uses a {note.kind} of process {note.parent}, off which it was forked",
        (Place(f"{note.call or 'a call'} uses it", who, book.frames(file, note.site)),),
        "open a driver after the fork, or start the process anew",
    )
