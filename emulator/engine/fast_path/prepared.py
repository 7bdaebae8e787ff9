"""Prepared submissions: which programs the C++ part accepts, and their conversion to its steps."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Final

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

MOST_STEPS: Final = 16
MOST_BYTES: Final = 1 << 20
"""Maximum bytes of copies and fills in one list: no other queue runs meanwhile."""
MOST_OF_A_QUEUE: Final = 1024
MOST_OF_A_SESSION: Final = 8 * MOST_OF_A_QUEUE
"""Each takes 2 KiB, beside its program."""
_RUNS: Final = 4  # of an inference before a request of its own is worthwhile
_MOST_SEEN: Final = 1024
_MOST_UNSEEN: Final = 8 * _MOST_SEEN


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
    """A prepared submission. It keeps the objects of its record alive."""

    __slots__ = ("_kept", "called", "program", "record", "uses")

    def __init__(
        self,
        queue: EngineQueue,
        record: QueueRecord,
        submission: Submission,
        program: Program,
    ) -> None:
        space = queue.context.space
        self.program = program
        self.uses = frozenset((submission.buffer, *program.uses, *filter(None, [submission.fence])))
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
        self._users: dict[int, set[bytes]] = {}  # contents by a handle that they use
        self._called: dict[bytes, PreparedSubmission] = {}
        self._counted = 0  # for the session
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
        if not runs and len(self._runs) >= _MOST_SEEN:
            # more than that in turn would otherwise drive out each other before their second run
            self._unseen += 1
            if self._unseen < _MOST_UNSEEN:
                return
            self._unseen = 0
            self._runs.clear()
        self._runs[content] = runs + 1
        if not runs:
            return
        if self._is_full():
            # more of them in turn would each be prepared again, and driven out before their next use
            self._passed += 1
            if self._passed % MOST_OF_A_QUEUE or not self._by_content:
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
        if self._is_full():
            self._drop(next(iter(self._by_content)))
        del self._runs[content]
        self._add(content, prepared)

    def forget(self, handles: Iterable[int] | None = None) -> None:
        """Forget submissions that use one of these handles, or all."""
        self._runs.clear()
        found: list[Collection[bytes]] = [self._by_content]
        if handles is not None:
            found = [self._users.get(handle, ()) for handle in handles]
        for content in {content for contents in found for content in contents}:
            self._drop(content)

    def check(self) -> None:
        """Forget submissions whose program was evicted, or that C++ no longer calls."""
        programs = self._queue.context.programs
        for content, prepared in list(self._called.items()):
            if prepared.called is not None and not prepared.called.inference.can_be_called:
                self._drop(content)
        if self._evictions == programs.evictions:
            return
        self._evictions = programs.evictions
        for content, prepared in list(self._by_content.items()):
            if not programs.holds(prepared.program):
                self._drop(content)

    def end(self) -> None:
        """Give up what was counted for the session. It is not used any more."""
        self._count(-self._counted)

    def _count(self, more: int) -> None:
        self._counted += more
        self._queue.context.share.prepared += more

    def _is_full(self) -> bool:
        used = self._queue.context.share.prepared
        return len(self._by_content) >= MOST_OF_A_QUEUE or used >= MOST_OF_A_SESSION

    def _add(self, content: bytes, prepared: PreparedSubmission) -> None:
        self._by_content[content] = prepared
        self._table.add(content, prepared.record)
        self._count(1)
        if prepared.called is not None:
            self._called[content] = prepared
        for handle in prepared.uses:
            self._users.setdefault(handle, set()).add(content)
            self._queue.context.users.note(handle, self._queue.handle)

    def _drop(self, content: bytes) -> None:
        self._table.remove(content)
        self._count(-1)
        prepared = self._by_content.pop(content)
        self._called.pop(content, None)
        for handle in prepared.uses:
            users = self._users[handle]
            users.discard(content)
            if not users:
                del self._users[handle]


def _check(program: Program) -> None:
    """Refuse a program that may not be known yet, of many steps, or on memory of other programs."""
    if not program.complete or len(program.steps) > MOST_STEPS or len(program.executions) > 1:
        raise Ineligible
    if program.foreign:
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
