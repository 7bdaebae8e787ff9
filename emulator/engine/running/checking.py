"""The runner of an engine whose programs are checked: it notes what it runs, with the bytes of each command.

Other engines never import this module.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from softnpu.emulator.engine.commands import program as programs
from softnpu.emulator.engine.commands.arguments import argument_ranges
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.commands.running_submission import RunningSubmission
from softnpu.emulator.engine.commands.steps import EventWait, Pause
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.engine.running.runner import Runner
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import metrics
from softnpu.emulator.interface.check_notes import Access, NoteFile
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.interface.shared import EventRecord

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST_ROWS: Final = 4096
_WORD: Final = 8
_LOOK: Final = 4096


class _Described(NamedTuple):
    program: weakref.ref[Program]
    number: int
    commands: tuple[notes.Command, ...]


def note_signals(file: NoteFile) -> None:
    """Note each signal of an event before anybody can see it."""
    signal = programs._signal

    def noted(event: EventRecord, where: Range, at: cmd.MemoryAt, running: RunningSubmission) -> None:
        file.write(notes.Signalled(t=time.monotonic_ns(), file=_file(where), start=where.start))
        signal(event, where, at, running)

    programs._signal = noted


class CheckedRunner(Runner):
    """A runner that writes notes for `softnpu check`."""

    def __init__(self, file: NoteFile, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._notes = file
        self._programs: dict[int, _Described] = {}  # by id, as long as the program lives
        self._described_programs = 0
        note_signals(file)

    def _run_steps(self, queue: EngineQueue, program: Program) -> Pause | None:
        number, commands = self._described(queue, program)
        session, sequence, first = queue.context.session, queue.completed + 1, queue.step
        if queue.parts is None:
            self._note_unwritten(queue, program, commands)
        turn = notes.Turn(
            t=time.monotonic_ns(),
            session=session,
            queue=queue.handle,
            sequence=sequence,
            program=number,
            first=first,
        )
        self._notes.write(turn)
        done, failure = False, ""
        try:
            pause = super()._run_steps(queue, program)
            done = pause is None
            return pause
        except Refused as error:
            failure = str(error.info)
            raise
        except Exception as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            last = len(program.steps) if done else queue.step
            self._notes.write(
                notes.TurnEnd(t=time.monotonic_ns(), last=last, done=done, failure=failure[:500])
            )

    def _end_turn(self, queue: EngineQueue, submission: Submission, info: ErrorInfo | None) -> None:
        if info is not None:
            self._notes.write(
                notes.Failed(
                    t=time.monotonic_ns(),
                    session=queue.context.session,
                    queue=queue.handle,
                    sequence=submission.sequence,
                )
            )
        super()._end_turn(queue, submission, info)

    def _described(self, queue: EngineQueue, program: Program) -> tuple[int, tuple[notes.Command, ...]]:
        """Return the number of a program and its commands; note them at its first run."""
        key = id(program)
        found = self._programs.get(key)
        if found is not None:
            return found.number, found.commands
        self._described_programs += 1
        commands = tuple(_describe(queue.context.space, program))
        digest = hashlib.blake2b(program.data, digest_size=16).hexdigest()
        self._notes.write(
            notes.Program(
                t=time.monotonic_ns(), program=self._described_programs, commands=commands, digest=digest
            )
        )
        if program.complete:
            # held weakly: it holds memory of clients, and requests of OpenVINO
            alive = weakref.ref(program, lambda _: self._programs.pop(key, None))
            self._programs[key] = _Described(alive, self._described_programs, commands)
        return self._described_programs, commands

    def _note_unwritten(
        self, queue: EngineQueue, program: Program, commands: Sequence[notes.Command]
    ) -> None:
        """Note the bytes that a command will read and nobody has written, earlier commands included.

        Also the copies whose target has the bytes already. Not behind a wait that is not over: others may
        write them until then.
        """
        written: dict[str, list[tuple[int, int]]] = {}
        space = queue.context.space
        for number, command in enumerate(commands):
            if command.step < queue.step:
                continue
            step = program.steps[command.step] if command.step < len(program.steps) else None
            if isinstance(step, EventWait) and not step.event.signalled:
                return
            for access in command.reads:
                if access.end == access.start or access.dynamic:
                    continue
                for start, end in _without(access.start, access.end, written.get(access.file, ())):
                    found = _unwritten(space, access, start, end)
                    if found is None:
                        continue
                    self._notes.write(
                        notes.Unwritten(
                            t=time.monotonic_ns(),
                            session=queue.context.session,
                            queue=queue.handle,
                            sequence=queue.completed + 1,
                            command=number,
                            access=access,
                            first=found[0] - access.start,
                            count=found[1],
                        )
                    )
            is_first = not written.keys() & {access.file for access in (*command.reads, *command.writes)}
            if command.kind == "Copy" and is_first and _is_there(space, command):
                self._notes.write(
                    notes.Unchanged(
                        t=time.monotonic_ns(),
                        session=queue.context.session,
                        queue=queue.handle,
                        sequence=queue.completed + 1,
                        command=number,
                    )
                )
            for access in command.writes:
                written.setdefault(access.file, []).append((access.start, access.end))


def _file(where: Range) -> str:
    return f"{where.file[0]:x}:{where.file[1]}"


def _access(space: AddressSpace, at: cmd.MemoryAt, size: int, name: str = "") -> Access:
    where = space.memory(at.memory).range(at.offset, size)
    return Access(at.memory, at.offset, _file(where), where.start, where.end, name)


def _rows(space: AddressSpace, at: cmd.MemoryAt, pitch: int, width: int, rows: int) -> tuple[Access, ...]:
    if rows == 1 or pitch <= width:
        return (_access(space, at, pitch * (rows - 1) + width),)
    starts = range(at.offset, at.offset + pitch * min(rows, _MOST_ROWS), pitch)
    return tuple(_access(space, cmd.MemoryAt(at.memory, start), width) for start in starts)


def _describe(space: AddressSpace, program: Program) -> Iterator[notes.Command]:
    """Yield the commands of a program, which decoding has checked."""
    step = 0
    for command in cmd.decode_each(program.data):
        if command is None:
            continue
        kind, at_step = type(command).__name__, step
        step += 1
        match command:
            case cmd.Barrier():
                step -= 1  # no step of its own
                yield notes.Command(kind, at_step)
            case cmd.Fill(at, size, _):
                yield notes.Command(kind, at_step, writes=(_access(space, at, size),))
            case cmd.Copy(target, source, size):
                reads = (_access(space, source, size),)
                yield notes.Command(kind, at_step, reads, (_access(space, target, size),))
            case cmd.CopyRegion():
                width, rows = command.width, command.rows
                yield notes.Command(
                    kind,
                    at_step,
                    _rows(space, command.source, command.source_pitch, width, rows),
                    _rows(space, command.target, command.target_pitch, width, rows),
                )
            case cmd.Timestamp(at):
                yield notes.Command(kind, at_step, writes=(_access(space, at, 8),))
            case cmd.MetricSnapshot(at):
                yield notes.Command(kind, at_step, writes=(_access(space, at, metrics.SNAPSHOT.size),))
            case cmd.EventSignal(at) | cmd.EventReset(at) | cmd.EventWait(at):
                yield notes.Command(kind, at_step, event=_access(space, at, SIGNAL_SIZE))
            case cmd.GraphInit(graph):
                yield notes.Command(kind, at_step, graph=graph)
            case cmd.GraphExecute():
                yield _execution(space, command, kind, at_step)


def _execution(space: AddressSpace, command: cmd.GraphExecute, kind: str, step: int) -> notes.Command:
    image = space.graph(command.graph).loaded
    if image is None:  # described again once it is loaded
        return notes.Command(kind, step, graph=command.graph)
    reads: list[Access] = []
    writes: list[Access] = []
    bound = argument_ranges(space, command, image.meta)
    for argument, at, where in bound:
        access = Access(
            at.memory, at.offset, _file(where), where.start, where.end, argument.name, argument.is_dynamic
        )
        (reads if argument.input else writes).append(access)
    return notes.Command(kind, step, tuple(reads), tuple(writes), graph=command.graph, model=image.meta.name)


def _without(start: int, end: int, taken: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that none of `taken` covers."""
    for low, high in sorted(taken):
        if high <= start or low >= end:
            continue
        if low > start:
            yield start, low
        start = max(start, high)
        if start >= end:
            return
    if start < end:
        yield start, end


def _bytes(space: AddressSpace, access: Access) -> npt.NDArray[np.uint8]:
    size = access.end - access.start
    return space.memory(access.memory).array[access.offset : access.offset + size]


def _is_there(space: AddressSpace, copy: notes.Command) -> bool:
    """Return whether the target of a copy has the bytes of its source."""
    source, target = _bytes(space, copy.reads[0]), _bytes(space, copy.writes[0])
    if not np.array_equal(source[:_LOOK], target[:_LOOK]):
        return False
    return bool(source.size) and np.array_equal(source, target)


def _unwritten(space: AddressSpace, access: Access, start: int, end: int) -> tuple[int, int] | None:
    """Return where the first unwritten words of the range begin in the file, and their bytes; None: none."""
    memory = space.memory(access.memory)
    origin = access.start - access.offset  # of the allocation in its file
    first, last = -(-start // _WORD) * _WORD, end // _WORD * _WORD
    if first >= last:
        return None
    words = memory.array[first - origin : last - origin].view(np.uint64)
    places = np.flatnonzero(words == np.uint64(notes.UNWRITTEN))
    if not places.size:
        return None
    return first + int(places[0]) * _WORD, int(places.size) * _WORD
