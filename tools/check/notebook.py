"""The notes of a run, merged by time, with the tables that tell who and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from softnpu.emulator.interface import check_notes as notes
from softnpu.tools.check.findings import Frames, Place
from softnpu.tools.check.symbols import names_of

_UNKNOWN = "unknown process"


def _no_names(_frames: Iterable[str]) -> dict[str, str]:
    return {}


@dataclass(slots=True)
class Object:
    """An object of a program: where it was made, and when and where the program has ended it.

    `gone`: by whatever it has ended. `shared`: other programs may use it.
    """

    kind: str
    frames: Frames
    size: int = 0
    address: int = 0
    made_ns: int = 0
    parent: int = 0
    shared: bool = False
    gone: bool = False
    ended_ns: int | None = None
    ended: Frames = ()
    resets: list[tuple[int, Frames]] = field(default_factory=list)


class Notebook:
    """All notes in `lines`: (time, file, note), by time. `read` again: those that were written since.

    `names`: look up the lines of C++ frames.
    """

    def __init__(self, folder: Path, *, names: bool = True) -> None:
        self._folder = folder
        self._names = names_of if names else _no_names
        self._ends: dict[Path, int] = {}  # of what was read of each file
        self._programs: dict[tuple[str, int], notes.Program] = {}
        self._files: dict[str, list[int]] = defaultdict(list)  # the sessions of each
        self.lines: list[tuple[int, str, notes.AnyNote]] = []
        self.processes: dict[int, str] = {}
        self.exited: set[int] = set()
        """Sessions of programs that have ended in order, and should have destroyed what they made."""
        self.objects: dict[tuple[int, str, int], Object] = {}
        self.calls: dict[tuple[int, int, int], tuple[tuple[str, Frames], ...]] = {}
        self.events: dict[tuple[int, int, int], tuple[str, int]] = {}
        self.event_ids: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        self.unchanged: list[notes.Unchanged] = []
        self.signals: dict[tuple[int, int, int], tuple[tuple[int, int, int], ...]] = {}
        self.failed: set[tuple[int, int, int]] = set()
        """Submissions that have ended with an error, or were cancelled."""
        self.rewaits: dict[tuple[int, int], list[tuple[int, int, Frames]]] = defaultdict(list)
        self.in_vain: list[tuple[str, notes.TimedOut]] = []
        self.semaphores: list[tuple[str, notes.Semaphore]] = []
        self._memory: dict[str, list[tuple[int, int, Object]]] = defaultdict(list)
        self._sites: dict[tuple[str, int], Frames] = {}
        self._called: dict[str, Path] = {}  # the program that wrote each file
        self.read()

    def read(self) -> None:
        """Read what the last time was not there."""
        self.lines = []
        for path in sorted(self._folder.glob("*.jsonl")):
            text = self._new_text(path)
            self.lines += [(note.t, path.name, note) for note in notes.read(text)]
        for path in sorted(self._folder.glob("touched-*.txt")):
            file = path.name.replace("touched-", "client-").replace(".txt", ".jsonl")
            touched = notes.read_touched(self._new_text(path).decode(errors="replace"))
            self.lines += [(access.t, file, access) for access in touched]
        self.lines.sort(key=lambda line: line[0])
        self._name_frames()
        self._collect()

    def _new_text(self, path: Path) -> bytes:
        """Return the whole lines that were added."""
        with path.open("rb") as file:
            file.seek(self._ends.get(path, 0))
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._ends[path] = self._ends.get(path, 0) + len(text)
        return text

    def frames(self, file: str, site: int) -> Frames:
        """Return a place in the program that wrote this file."""
        return self._sites.get((file, site), ())

    def process(self, session: int) -> str:
        """Return the program and pid of a session."""
        return self.processes.get(session, _UNKNOWN)

    def memory(self, session: int, handle: int) -> Place | None:
        """Return where an allocation was made, if its process said so."""
        found = self.objects.get((session, "memory", handle))
        if found is None:
            return None
        return Place(f"memory of {found.size:,} bytes, allocated", self.process(session), found.frames)

    def end_of(self, session: int, memory: Object) -> Object:
        """Return what the memory ends with: itself, or its context."""
        context = self.objects.get((session, "context", memory.parent))
        return memory if memory.ended_ns is not None or context is None else context

    def memory_at(self, file: str, t: int, address: int) -> tuple[int, int, Object] | None:
        """Return session, handle and allocation at an address of a process at that time."""
        found = None
        for session, handle, memory in self._memory[file]:
            if memory.made_ns <= t and memory.address <= address < memory.address + memory.size:
                found = session, handle, memory  # the last one: addresses are used again
        return found

    def memory_near(self, file: str, t: int, address: int) -> tuple[int, int, Object] | None:
        """Return the allocation whose end or beginning is nearest to an address."""
        alive = [each for each in self._memory[file] if each[2].made_ns <= t and each[2].size]
        return min(
            reversed(alive),
            key=lambda each: max(each[2].address - address, address - each[2].address - each[2].size + 1),
            default=None,
        )

    def _name_frames(self) -> None:
        """Look up the lines of C++ frames. They name the program as it was called: that may be relative."""
        for _, file, note in self.lines:
            if isinstance(note, notes.Session):  # a forked child has none: by name
                self._called[file] = self._called[Path(note.file).name] = Path(note.file)
        whole: dict[tuple[str, str], str] = {}
        for _, file, note in self.lines:
            for frame in note.frames if isinstance(note, notes.Site | notes.Touched) else ():
                module, plus, rest = frame.partition("+0x")
                program = self._called.get(file) or self._called.get(Path(module).name, Path())
                is_program = not module.startswith("/") and Path(module).name == program.name
                whole[file, frame] = f"{program}{plus}{rest}" if is_program else frame
        names = self._names(whole.values())
        for number, (t, file, note) in enumerate(self.lines):
            if isinstance(note, notes.Site | notes.Touched):
                frames = tuple(names.get(whole[file, frame], whole[file, frame]) for frame in note.frames)
                self.lines[number] = t, file, msgspec.structs.replace(note, frames=frames)
            if isinstance(note, notes.Site):  # what refers to it may have an earlier time
                self._sites[file, note.site] = frames

    def _collect(self) -> None:
        for t, file, note in self.lines:
            match note:
                case notes.Session(session=session, pid=pid, program=program):
                    self.processes[session] = f"{program} ({pid})"
                    self._files[file].append(session)
                case notes.Exit():
                    self.exited.update(self._files[file])
                case notes.Made():
                    frames = self.frames(file, note.site)
                    made = Object(note.kind, frames, note.size, note.address, t, note.parent, note.shared)
                    self.objects[note.session, note.kind, note.id] = made
                    if note.kind == "event":
                        self.event_ids[note.session, note.memory, note.offset].append((t, note.id))
                    if note.kind == "memory":
                        self._memory[file].append((note.session, note.id, made))
                case notes.Ended():
                    ended = self.objects.get((note.session, note.kind, note.id))
                    if ended is not None and note.reset:
                        ended.resets.append((t, self.frames(file, note.site)))
                    elif ended is not None:
                        ended.gone = True
                        if ended.ended_ns is None and not note.by_itself:
                            ended.ended_ns, ended.ended = t, self.frames(file, note.site)
                case notes.Recorded():
                    self.calls[note.session, note.list, note.recording] = tuple(
                        (call, self.frames(file, site)) for call, site in note.calls
                    )
                    self.signals[note.session, note.list, note.recording] = note.signals
                case notes.Unchanged():
                    self.unchanged.append(note)
                case notes.Cancelled() | notes.Failed():
                    self.failed.add((note.session, note.queue, note.sequence))
                case notes.Rewaited():
                    waited = t, note.sequence, self.frames(file, note.site)
                    self.rewaits[note.session, note.queue].append(waited)
                case notes.TimedOut():
                    self.in_vain.append((file, note))
                case notes.Semaphore():
                    self.semaphores.append((file, note))
                case notes.Program():
                    self._programs[file, note.program] = note
                case notes.Turn():
                    self._learn_events(note.session, self._programs.get((file, note.program)))
                case _:
                    pass

    def _learn_events(self, session: int, program: notes.Program | None) -> None:
        for command in () if program is None else program.commands:
            if command.event is not None:
                at = command.event
                self.events[session, at.memory, at.offset] = at.file, at.start
