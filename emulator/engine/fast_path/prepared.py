"""Prepared submissions: which programs the C++ part accepts, and their conversion to its steps."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Final

from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.fast_path.native_records import (
    CONTENT,
    Kind,
    PreparedRecord,
    QueueRecord,
    StepRecord,
)
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Memory
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino.c_model_maker import CModelMaker
from softnpu.emulator.openvino.c_models import CModelError, CModelRequest

MOST_STEPS: Final = 16
MOST_BYTES: Final = 1 << 20
"""Maximum bytes of copies and fills in one list: no other queue runs meanwhile."""
MOST_OF_A_QUEUE: Final = 64
_RUNS: Final = 4  # of an inference before a request of its own is worthwhile
_MOST_SEEN: Final = 1024


class Ineligible(Exception):
    """The C++ part does not accept this program; nothing was prepared."""


class PreparedSubmission:
    """A prepared submission. It keeps the objects of its record alive."""

    __slots__ = ("_kept", "program", "record", "uses")

    def __init__(self, queue: EngineQueue, submission: Submission, program: Program) -> None:
        space = queue.context.space
        self.program = program
        self.uses = frozenset((submission.buffer, *program.uses, *filter(None, [submission.fence])))
        request = _request_of(program)
        steps = list(_steps(space, program, request))
        if len(steps) != len(program.steps):
            raise Ineligible
        buffer = space.memory(submission.buffer)
        array = (StepRecord * max(1, len(steps)))(*steps)
        self.record = PreparedRecord(
            content=(ctypes.c_ubyte * CONTENT)(*submission.content),
            commands=_address(buffer, submission.offset),
            data=program.data,
            size=len(program.data),
            steps=array,
            count=len(steps),
            journaled=program.journaled,
            commands_done=program.commands,
            inferences=program.inferences,
            read=program.read,
            written=program.written,
            tiles=program.tiles,
        )
        fence = None
        if submission.fence:
            fence = space.memory(submission.fence)
            self.record.fence = _address(fence, submission.fence_offset)
        counts = None
        if program.executions:
            counts = ctypes.c_char.from_buffer(program.executions[0].counts)
            self.record.image = ctypes.addressof(counts)
        self._kept = (array, buffer, fence, counts, request)


class PreparedSubmissions:
    """The prepared submissions of one queue, by slot content, and the queue's record for the C++ part."""

    def __init__(self, queue: EngineQueue, maker: CModelMaker) -> None:
        self._maker = maker
        self.record = QueueRecord(slots=queue.slots, turbo=queue.turbo, doorbell=queue.context.doorbell)
        self._state = ctypes.c_char.from_buffer(queue.state_words)
        self.record.ring = queue.ring_address
        self.record.state = ctypes.addressof(self._state)
        self._queue = queue
        self._by_content: dict[bytes, PreparedSubmission] = {}
        self._runs: dict[bytes, int] = {}  # before it was prepared; -1: ineligible
        self._passed = 0  # while there was no room
        self._evictions = queue.context.programs.evictions
        self._table()

    def __contains__(self, content: bytes) -> bool:
        return content in self._by_content

    def learn(self, submission: Submission, program: Program) -> None:
        """Prepare a submission that has just succeeded, if it has run before and suits C++."""
        content = submission.content
        runs = self._runs.get(content, 0)
        if runs < 0:
            return
        if len(self._runs) >= _MOST_SEEN:
            self._runs.clear()
        self._runs[content] = runs + 1
        if not runs:
            return
        if len(self._by_content) >= MOST_OF_A_QUEUE:
            # more of them in turn would each be prepared again, and driven out before their next use
            self._passed += 1
            if self._passed % MOST_OF_A_QUEUE:
                return
        inference = program.executions[0] if program.executions else None
        if inference is not None and not inference.has_c_model:
            if runs >= _RUNS and not inference.wants_c_model(self._maker):
                self._runs[content] = -1
            return
        try:
            prepared = PreparedSubmission(self._queue, submission, program)
        except (Ineligible, CModelError, Refused):
            self._runs[content] = -1
            return
        if len(self._by_content) >= MOST_OF_A_QUEUE:
            self._by_content.pop(next(iter(self._by_content)))
        del self._runs[content]
        self._by_content[content] = prepared
        self._table()
        users = self._queue.context.users
        for handle in prepared.uses:
            users.note(handle, self._queue.handle)

    def forget(self, handles: Iterable[int] | None = None) -> None:
        """Forget submissions that use one of these handles, or all."""
        self._runs.clear()
        dropped = None if handles is None else frozenset(handles)
        kept = {
            content: prepared
            for content, prepared in self._by_content.items()
            if dropped is not None and not prepared.uses & dropped
        }
        if len(kept) != len(self._by_content):
            self._by_content = kept
            self._table()

    def check(self) -> None:
        """Forget submissions whose program was evicted."""
        programs = self._queue.context.programs
        if self._evictions == programs.evictions:
            return
        self._evictions = programs.evictions
        kept = {
            key: prepared for key, prepared in self._by_content.items() if programs.holds(prepared.program)
        }
        if len(kept) != len(self._by_content):
            self._by_content = kept
            self._table()

    def _table(self) -> None:
        pointers = [ctypes.pointer(prepared.record) for prepared in self._by_content.values()]
        self._pointers = (ctypes.POINTER(PreparedRecord) * max(1, len(pointers)))(*pointers)
        self.record.prepared, self.record.prepared_count, self.record.found = self._pointers, len(pointers), 0


def _request_of(program: Program) -> CModelRequest | None:
    """Return a request for the inference of a program; None if it has none."""
    if not program.complete or len(program.steps) > MOST_STEPS or len(program.executions) > 1:
        raise Ineligible
    if program.foreign:
        raise Ineligible
    if not program.executions:
        return None
    return program.executions[0].c_model_request()


def _steps(space: AddressSpace, program: Program, request: CModelRequest | None) -> Iterator[StepRecord]:
    room = MOST_BYTES
    for command in cmd.decode_each(program.data):
        match command:
            case None | cmd.Barrier():
                continue
            case cmd.GraphExecute():
                assert request is not None
                yield StepRecord(Kind.INFER, request.handle.value)
            case cmd.Copy(target, source, size):
                room -= size
                to, origin = space.resolve(target, size), space.resolve(source, size)
                if to.range(target.offset, size).overlaps(origin.range(source.offset, size)):
                    raise Ineligible
                yield StepRecord(
                    Kind.COPY, _address(to, target.offset), _address(origin, source.offset), size
                )
            case cmd.Fill(at, size, pattern):
                room -= size
                value = int.from_bytes(pattern * (8 // len(pattern)), "little")
                memory = space.resolve(at, size)
                yield StepRecord(Kind.FILL, _address(memory, at.offset), None, size, value)
            case cmd.Timestamp(at):
                yield StepRecord(Kind.TIMESTAMP, _address(space.resolve(at, 8, 8), at.offset))
            case cmd.EventWait(at) | cmd.EventSignal(at) | cmd.EventReset(at):
                memory = space.resolve(at, SIGNAL_SIZE, 8)
                kind = _EVENTS[type(command)]
                yield StepRecord(kind, _address(memory, at.offset), None, at.memory, at.offset)
            case _:
                raise Ineligible
        if room < 0:
            raise Ineligible


_EVENTS: Final[dict[type[cmd.Command], Kind]] = {
    cmd.EventWait: Kind.EVENT_WAIT,
    cmd.EventSignal: Kind.EVENT_SIGNAL,
    cmd.EventReset: Kind.EVENT_RESET,
}


def _address(memory: Memory, offset: int) -> int:
    return memory.mapping.shared.address + memory.offset + offset
