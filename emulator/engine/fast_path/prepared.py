"""Prepared submissions: which programs the C++ part accepts, and their conversion to its steps."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from softnpu.emulator.engine.commands.inference import Inference
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.fast_path.native_records import (
    CALLED,
    CONTENT,
    Kind,
    PreparedRecord,
    QueueRecord,
    StepRecord,
)
from softnpu.emulator.engine.fast_path.record_table import RecordTable
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Memory
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino.c_models import CModelError
from softnpu.emulator.openvino.copies import CopyMaker

log = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST_STEPS: Final = 16
MOST_BYTES: Final = 1 << 20
"""Maximum bytes of copies and fills in one list: no other queue runs meanwhile."""
MOST_OF_A_QUEUE: Final = 1024
SESSION_BYTES: Final = 16 * 1024 * 1024
"""Of all that a session has prepared, beside `LEAST_OF_A_QUEUE`: some 8000 submissions."""
LEAST_OF_A_QUEUE: Final = 64
"""So many of short programs a queue may have, whatever the others of its session have."""
_RECORD_BYTES: Final = 2048  # of one, beside the data of its program, which may be kept for it alone
_SHORT_BYTES: Final = 4096
_LONGEST: Final = 128 * 1024
_REPLACE_EVERY: Final = 64  # of those for which there is no room
_MOST_REPLACED: Final = 64  # by one, the longest
_RUNS: Final = 4  # of an inference before a request of its own is worthwhile
MOST_SEEN: Final = 1024
_REMEMBER_EVERY: Final = 7  # of those seen beyond that, in place of the oldest one


class Ineligible(Exception):
    """The C++ part does not accept this program; nothing was prepared."""


class CalledInference:
    """An inference that C++ calls."""

    __slots__ = ("_queue", "_record", "inference")

    def __init__(self, queue: EngineQueue, record: QueueRecord, inference: Inference) -> None:
        self._queue = queue
        self._record = record
        self.inference = inference

    def run(self) -> int:
        """Run it; anything but `CALLED` makes Python run it again, which reports what is wrong."""
        queue, record = self._queue, self._record
        try:
            queue.completed, queue.step = record.completed, record.step  # it may log what it overwrites
            return CALLED if self.inference.run_called(queue) else 0
        except Exception:
            log.debug("an inference runs again", exc_info=True)
            return 0


call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object)(CalledInference.run)
"""What C++ calls with a `CalledInference`."""


class PreparedSubmission:
    """A prepared submission. It keeps the objects of its record alive.

    `handles`: those that it uses beside those of its program.
    """

    __slots__ = ("_kept", "called", "handles", "program", "record")

    def __init__(
        self,
        queue: EngineQueue,
        record: QueueRecord,
        submission: Submission,
        program: Program,
    ) -> None:
        space = queue.context.space
        self.program = program
        self.handles = {submission.buffer, *filter(None, [submission.fence])}
        self.called: CalledInference | None = None
        request = inference = None
        _check(program)
        if program.executions:
            if not program.executions[0].has_c_model:
                self.called = CalledInference(queue, record, program.executions[0])
                inference = StepRecord(Kind.CALL, id(self.called))
            else:
                request = program.executions[0].c_model_request()
                inference = StepRecord(Kind.INFER, request.handle.value)
        steps = list(_steps(space, program, inference))
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

    def __init__(self, queue: EngineQueue, copies: CopyMaker) -> None:
        self._copies = copies
        self.record = QueueRecord(slots=queue.slots, turbo=queue.turbo, doorbell=queue.context.doorbell)
        self._state = ctypes.c_char.from_buffer(queue.state_words)
        self.record.ring = queue.ring_address
        self.record.state = ctypes.addressof(self._state)
        self._queue = queue
        self._by_content: dict[bytes, PreparedSubmission] = {}
        self._of_program: dict[int, set[bytes]] = {}  # contents by the id of a program, which they keep alive
        self._of_handle: dict[int, set[bytes]] = {}
        self._programs: dict[int, set[int]] = {}  # ids by a handle that they use
        self._called: dict[int, tuple[Inference, set[bytes]]] = {}  # by the id of the inference
        self._counted = 0  # bytes, for the session
        self._table = RecordTable(self.record)
        self._runs: dict[bytes, int] = {}  # before it was prepared; -1: ineligible
        self._passed = self._unseen = 0  # while there was no room
        self._evictions = queue.context.programs.evictions

    def __contains__(self, content: bytes) -> bool:
        return content in self._by_content

    def learn(self, submission: Submission, program: Program) -> None:
        """Prepare a submission that has just succeeded, if it has run before and suits C++."""
        content = submission.content
        runs = self._runs.get(content, 0)
        if runs < 0:
            return
        if not runs and len(self._runs) >= MOST_SEEN:
            # more than that in turn would otherwise drive out each other before their second run
            self._unseen += 1
            if self._unseen % _REMEMBER_EVERY:
                return
            del self._runs[next(iter(self._runs))]
        self._runs[content] = runs + 1
        if not runs or not self._queue.context.programs.holds(program):
            return
        replaced: list[bytes] = []
        if not self._has_room(program):
            # more of them in turn would each be prepared again, and driven out before their next use
            self._passed += 1
            if self._passed % _REPLACE_EVERY or not (replaced := self._oldest(program)):
                return
        inference = program.executions[0] if program.executions else None
        if inference is not None and not inference.has_c_model:
            if runs < _RUNS:
                return
            inference.ask_c_model(self._copies)
            if not inference.can_be_called:
                return
        try:
            prepared = PreparedSubmission(self._queue, self.record, submission, program)
        except (Ineligible, CModelError, Refused):
            self._runs[content] = -1
            return
        self._drop_all(replaced)
        del self._runs[content]
        self._add(content, prepared)

    def forget(self, handles: Iterable[int] | None = None) -> None:
        """Forget submissions that use one of these handles, or all."""
        self._runs.clear()
        if handles is None:
            self._drop_all(self._by_content)
            return
        for handle in handles:
            self._drop_all(self._of_handle.get(handle, ()))
            for program in list(self._programs.get(handle, ())):
                self._drop_all(self._of_program[program])

    def check(self) -> None:
        """Forget submissions whose program was evicted, or that C++ no longer calls.

        Request a C model for those that it calls: one may be short only now, as on a machine that was busy.
        """
        programs = self._queue.context.programs
        for inference, contents in list(self._called.values()):
            if inference.can_be_called:
                inference.ask_c_model(self._copies)
            else:
                self._drop_all(contents)
        if self._evictions == programs.evictions:
            return
        self._evictions = programs.evictions
        for contents in list(self._of_program.values()):
            if not programs.holds(self._by_content[next(iter(contents))].program):
                self._drop_all(contents)

    def end(self) -> None:
        """Give up what was counted for the session. It is not used any more."""
        self._count(-self._counted)

    def _count(self, more: int) -> None:
        self._counted += more
        self._queue.context.share.prepared_bytes += more

    def _oldest(self, program: Program) -> list[bytes]:
        """Return the contents of the oldest ones that make room for one of this program, none if too many."""
        found = []
        for content in islice(self._by_content, _MOST_REPLACED):
            found.append(content)
            if self._has_room(program, found):
                return found
        return []

    def _has_room(self, program: Program, without: Sequence[bytes] = ()) -> bool:
        """Whether one of this program has room, if those of these contents are dropped."""
        count, size = len(self._by_content) - len(without), _size(program)
        used = self._queue.context.share.prepared_bytes
        used -= sum(_size(self._by_content[content].program) for content in without)
        if count >= MOST_OF_A_QUEUE:
            return False
        return used + size <= SESSION_BYTES or (count < LEAST_OF_A_QUEUE and size <= _SHORT_BYTES)

    def _add(self, content: bytes, prepared: PreparedSubmission) -> None:
        queue, program = self._queue, prepared.program
        if id(program) not in self._of_program:
            for handle in program.uses:
                _note(self._programs, handle, id(program))
                queue.context.users.note(handle, queue.handle)
        for handle in prepared.handles:
            _note(self._of_handle, handle, content)
            queue.context.users.note(handle, queue.handle)
        if prepared.called is not None:
            inference = prepared.called.inference
            self._called.setdefault(id(inference), (inference, set()))[1].add(content)
        _note(self._of_program, id(program), content)
        self._by_content[content] = prepared
        self._count(_size(program))
        self._table.add(content, prepared.record)  # last: what C++ finds is known

    def _drop_all(self, contents: Iterable[bytes]) -> None:
        for content in list(contents):
            self._drop(content)

    def _drop(self, content: bytes) -> None:
        self._table.remove(content)
        prepared = self._by_content.pop(content)
        program = prepared.program
        self._count(-_size(program))
        _remove(self._of_program, id(program), content)
        if id(program) not in self._of_program:
            for handle in program.uses:
                _remove(self._programs, handle, id(program))
        for handle in prepared.handles:
            _remove(self._of_handle, handle, content)
        if prepared.called is not None:
            number = id(prepared.called.inference)
            contents = self._called[number][1]
            contents.discard(content)
            if not contents:
                del self._called[number]


def _note(index: dict[int, set[_T]], key: int, value: _T) -> None:
    index.setdefault(key, set()).add(value)


def _remove(index: dict[int, set[_T]], key: int, value: _T) -> None:
    values = index[key]
    values.discard(value)
    if not values:
        del index[key]


def _size(program: Program) -> int:
    """Estimate the bytes that a prepared submission of a program takes."""
    return _RECORD_BYTES + len(program.data)


def _check(program: Program) -> None:
    """Refuse a program that may not be known yet, of many steps, or on memory of other programs."""
    if not program.complete or len(program.steps) > MOST_STEPS or len(program.executions) > 1:
        raise Ineligible
    if program.foreign or len(program.data) > _LONGEST:
        raise Ineligible


def _steps(space: AddressSpace, program: Program, inference: StepRecord | None) -> Iterator[StepRecord]:
    room = MOST_BYTES
    for command in cmd.decode_each(program.data):
        match command:
            case None | cmd.Barrier():
                continue
            case cmd.GraphExecute():
                assert inference is not None
                yield inference
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
