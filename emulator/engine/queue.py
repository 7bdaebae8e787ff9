"""The engine's end of a command queue: takes submissions out of the ring, reports how they ended."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.common import failpoints, linux
from softnpu.emulator.interface import commands, records
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import EventRecord, FenceRecord
from softnpu.emulator.links import engine as link

if TYPE_CHECKING:
    from softnpu.emulator.engine.context import EngineContext, Memory
    from softnpu.emulator.engine.program import Decoding, Program
    from softnpu.emulator.engine.steps import Rest
    from softnpu.emulator.interface.commands import MemoryAt


_LARGEST = 2**64 - 1
_CONTENT = slice(8, records.SLOT_TICKET)  # of a slot: what does not change when a list is submitted again
_SEQUENCE_BEFORE, _TICKET_BEHIND = bytes(8), bytes(records.SLOT_SIZE - records.SLOT_TICKET)


class Submission:
    """A private copy of one slot, and where its handles lead once that was looked up.

    `content` is the slot without sequence number, ticket and result; `signals` is the fence, once found.
    """

    __slots__ = (
        "buffer",
        "content",
        "fence",
        "fence_offset",
        "flags",
        "offset",
        "place",
        "sequence",
        "signals",
        "size",
        "ticket",
    )

    def __init__(self, sequence: int, content: bytes, ticket: int) -> None:
        self.sequence = sequence
        self.content = content
        self.ticket = ticket
        slot = SLOT.unpack(_SEQUENCE_BEFORE + content + _TICKET_BEHIND)
        _, self.buffer, self.offset, self.size, self.flags, self.fence, self.fence_offset, *_ = slot
        self.place: tuple[mmap, slice] | None = None
        self.signals: FenceRecord | None = None

    def is_cancelled(self) -> bool:
        """Whether the driver asks that it is not begun, or ends early."""
        return self.signals is not None and self.signals.is_cancelled(self.ticket)


class EngineQueue:
    """One ring. `completed` is kept here, never read back from memory that the client can write."""

    def __init__(
        self, context: EngineContext, order: link.QueueAdd, ring: Memory, states: memoryview
    ) -> None:
        if ring.size < records.ring_size(order.slots):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "ring",
                found=f"{ring.size} bytes",
                expected=f"{records.ring_size(order.slots)}",
            )
        self.context = context
        self.handle = order.queue
        self.share = context.share
        self._priority = order.priority
        self.level = 0
        self.set_background(order.background)
        self.turbo = order.turbo
        self.condemned = order.condemned
        self.verdict = order.verdict
        self.closed = False
        self.ran_ns = 0  # when it ran last
        # a submission that cannot go on yet: its program or what there is of it, the next step, what is left
        # of that step, and when to give up
        self.decoding: Decoding | None = None
        self.blocked: Program | None = None
        self.step = 0
        self.rest: Rest | None = None
        self.give_up_ns = 0
        self._buffer = ring.mapping.shared.buffer
        self._words = ring.mapping.shared.words
        self._longs = ring.mapping.shared.longs
        self._base = ring.offset
        self._tail = (ring.offset + records.RING_TAIL) >> 3
        self._done = (ring.offset + records.RING_COMPLETED) >> 3
        self._asleep = (ring.offset + records.RING_ASLEEP) >> 2
        self._waiters = (ring.offset + records.RING_WAITERS) >> 2
        self._done_address = ring.mapping.shared.address + ring.offset + records.RING_COMPLETED
        self._slots = order.slots
        state = order.state * (link.QUEUE_STATE_SIZE // 8)
        self._state = states[state : state + link.QUEUE_STATE_SIZE // 8]
        self.completed = self._state[link.STATE_COMPLETED]
        self.lost: ErrorInfo | None = None
        self._last: Submission | None = None  # what was copied last: most programs submit the same again

    def resume(self) -> None:
        """After an engine reset: settle what the dead engine began or ended and may not have told.

        Once all objects of the device are announced, and before anything runs.
        """
        state = self._state
        reached = state[link.STATE_REACHED]
        if reached >> link.REACHED_BITS == self.completed + 1:
            self.step = reached & link.REACHED_MASK
        self._settle_event()
        judged = self.condemned == self.completed + 1 and self.verdict is not None
        # the watchdog that has ended a hanging engine says why in its own words
        if state[link.STATE_INJECTED] == self.completed + 1 and not judged:
            self.condemned = self.completed + 1
            self.verdict = _doomed(int(state[link.STATE_INJECTED_RESULT]))
        # as long as the ring does not say so the slot is that of this submission, and its fence may be untold
        if self._longs[self._done] != self.completed:
            self._tell_fence(self.completed)
            self._longs[self._done] = self.completed
        self._wake()

    def _settle_event(self) -> None:
        """Find out whether the command that the dead engine had begun has changed its event."""
        state = self._state
        handle = state[link.STATE_EFFECT_EVENT]
        if not handle or state[link.STATE_EFFECT_STEP] != self._step_id():
            return
        try:
            memory = self.context.memory(handle)
        except Refused:
            return  # the client has freed it: the command will be refused
        event = EventRecord(memory.mapping.shared, memory.offset + state[link.STATE_EFFECT_OFFSET])
        if event.changes != state[link.STATE_EFFECT_VALUE]:
            self.step += 1
            state[link.STATE_REACHED] = self._step_id()
        else:
            # another queue may change the event before this one does: an engine after this would count that
            state[link.STATE_EFFECT_STEP] = 0

    def _tell_fence(self, sequence: int) -> None:
        submission = Submission(*self._copy_slot(sequence))
        if submission.sequence != sequence or not submission.fence:
            return
        try:
            fence = self.fence(submission)
        except Refused:
            return  # the client has freed it: nobody waits
        fence.signal(submission.ticket, self._words[self._result_at(sequence)])

    def set_background(self, background: bool) -> None:
        """Its level of scheduling: 1 low, 2 normal, 3 high; 0 while its workload is a background one."""
        self.level = 0 if background else self._priority + 1

    def lose(self, info: ErrorInfo) -> None:
        """Nothing of this queue runs any more: what waits, and what comes, ends with the fault."""
        self.lost = info
        self._words[(self._base + records.RING_LOST) >> 2] = 1

    # ------------------------------------------------------------ looking

    def pending(self) -> bool:
        """Whether a submission waits in the ring."""
        return self._longs[self._tail] != self.completed

    def set_asleep(self, asleep: bool) -> None:
        """Tells the driver whether the doorbell is needed."""
        self._words[self._asleep] = asleep

    def next(self) -> Submission:
        """A copy of the next submission; refuses a ring that cannot be right."""
        sequence = self.completed + 1
        waiting = self._longs[self._tail] - self.completed
        found, content, ticket = self._copy_slot(sequence)
        submission = self._last
        if submission is not None and submission.content == content:
            submission.sequence, submission.ticket = found, ticket
        else:
            submission = self._last = Submission(found, content, ticket)
        if not 0 < waiting <= self._slots or submission.sequence != sequence or submission.flags:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"command queue {self.handle:#018x}",
                found=f"{waiting} submissions, slot {submission.sequence}, flags {submission.flags:#x}",
                expected=f"1 to {self._slots} submissions, slot {sequence}, no flags",
                hint="the ring was overwritten",
            )
        return submission

    def peek(self, behind: int) -> Submission | None:
        """A copy of the submission behind so many others that wait; None if there is none."""
        sequence = self.completed + 1 + behind
        if not sequence <= self._longs[self._tail] < sequence + self._slots - behind:
            return None
        submission = Submission(*self._copy_slot(sequence))
        return submission if submission.sequence == sequence and not submission.flags else None

    def command_buffer(self, submission: Submission) -> bytes:
        """A private copy of its commands: the client may change the original while they are checked."""
        if submission.place is not None:
            buffer, place = submission.place
            return buffer[place]
        offset, size = submission.offset, submission.size
        memory = self.context.memory(submission.buffer)
        if size > commands.MAX_BUFFER or offset > memory.size or size > memory.size - offset:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"command buffer in memory {submission.buffer:#018x}",
                found=f"bytes {offset} to {offset + size}",
                expected=f"at most {commands.MAX_BUFFER} bytes inside its {memory.size} bytes",
            )
        start = memory.offset + offset
        buffer, place = submission.place = memory.mapping.shared.buffer, slice(start, start + size)
        return buffer[place]

    def fence(self, submission: Submission) -> FenceRecord:
        """The fence that a submission signals, noted in it as `signals`."""
        if submission.signals is not None:
            return submission.signals
        memory = self.context.memory(submission.fence)
        if submission.fence_offset > memory.size - records.SIGNAL_SIZE or submission.fence_offset % 8:
            raise refuse(
                ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT,
                f"memory {submission.fence:#018x}",
                found=f"fence at offset {submission.fence_offset}",
                expected=f"a multiple of 8 with 64 bytes inside its {memory.size} bytes",
            )
        fence = FenceRecord(memory.mapping.shared, memory.offset + submission.fence_offset)
        submission.signals = fence
        return fence

    def forget_places(self) -> None:
        """Memory of the context was freed: what was looked up must not keep it mapped, nor be used again."""
        self._last = None

    def _copy_slot(self, sequence: int) -> tuple[int, bytes, int]:
        """The sequence number that the slot of a submission has, its content, and its ticket."""
        at = self._slot_at(sequence)
        content = self._buffer[at + _CONTENT.start : at + _CONTENT.stop]
        return self._longs[at >> 3], content, self._longs[(at + records.SLOT_TICKET) >> 3]

    def _slot_at(self, sequence: int) -> int:
        return self._base + records.RING_HEADER + ((sequence - 1) & (self._slots - 1)) * records.SLOT_SIZE

    def _result_at(self, sequence: int) -> int:
        return (self._slot_at(sequence) + records.SLOT_RESULT) >> 2

    # ------------------------------------------------------------ reporting

    def begin(self, now_ns: int) -> None:
        """Notes in memory that outlives the engine what is about to run."""
        self._state[link.STATE_STARTED] = now_ns
        self._state[link.STATE_RUNNING] = self.completed + 1

    def reached(self, step: int, now_ns: int) -> None:
        """Notes that the steps before this one have ended: the next engine does not run them again."""
        self._state[link.STATE_STARTED] = now_ns
        self._state[link.STATE_REACHED] = ((self.completed + 1) << link.REACHED_BITS) | step

    def pending_effect(self) -> int | None:
        """What a dead engine noted for the current step of the submission that runs; None: nothing."""
        if self._state[link.STATE_EFFECT_STEP] != self._step_id() or self._state[link.STATE_EFFECT_EVENT]:
            return None
        return self._state[link.STATE_EFFECT_VALUE]

    def note_effect(self, value: int) -> None:
        """Notes a value for the current step, before its effect begins."""
        self._note(value, 0, 0)

    def note_event(self, at: MemoryAt, changes: int) -> None:
        """Notes that the current step changes this event, which has been changed so often before."""
        self._note(changes, at.memory, at.offset)

    def _note(self, value: int, event: int, offset: int) -> None:
        # an engine that dies between these stores leaves an effect that has not begun, and no note of it
        state = self._state
        state[link.STATE_EFFECT_STEP] = 0
        state[link.STATE_EFFECT_VALUE] = value
        state[link.STATE_EFFECT_EVENT] = event
        state[link.STATE_EFFECT_OFFSET] = offset
        state[link.STATE_EFFECT_STEP] = self._step_id()

    def doom(self, result: int) -> None:
        """Notes that the next submission ends with this result, because a user asked for it."""
        self._state[link.STATE_INJECTED] = 0
        self._state[link.STATE_INJECTED_RESULT] = result
        self._state[link.STATE_INJECTED] = self.completed + 1

    def _step_id(self) -> int:
        return ((self.completed + 1) << link.REACHED_BITS) | self.step

    def set_aside(self, step: int) -> None:
        """Notes that the submission does not run for now: it is not to blame if the engine dies."""
        self._state[link.STATE_RUNNING] = 0
        self._state[link.STATE_REACHED] = ((self.completed + 1) << link.REACHED_BITS) | step

    def forget(self) -> None:
        """The submission is over: nothing of it is kept."""
        self.blocked = None
        self.step = self.give_up_ns = 0
        if self.decoding is not None or self.rest is not None:
            self.decoding = self.rest = None

    def finish(self, submission: Submission | None, info: ErrorInfo | None) -> None:
        """The submission after `completed` has ended: its result, its fence, the ring, the waiters.

        One store makes it over, for this engine and the next: that of `STATE_COMPLETED`. What is seen before
        means nothing yet, what comes after is told again by the next engine.
        """
        sequence = self.completed + 1
        if info is not None:
            self._write_fault(sequence, info)
        result = 0 if info is None else int(info.result)
        self._words[self._result_at(sequence)] = result
        self.completed = sequence
        self._state[link.STATE_COMPLETED] = sequence
        if failpoints.active is not None:
            failpoints.hit("engine.ended")
        if submission is not None and submission.signals is not None:
            submission.signals.signal(submission.ticket, result)
        if failpoints.active is not None:
            failpoints.hit("engine.signal")
        self._longs[self._done] = sequence
        self._wake()

    def abandon(self, info: ErrorInfo) -> None:
        """The ring itself is broken: the queue is lost, and what it claims to hold is passed over."""
        # `completed` may be anything that fits into the word: it came from the tail of an earlier break
        self._write_fault((self.completed + 1) & _LARGEST, info)
        waiting = min(self._longs[self._tail] - self.completed, self._slots)
        for sequence in range(self.completed + 1, self.completed + 1 + waiting):
            self._words[self._result_at(sequence)] = info.result  # none of them will run
        self.completed = self._longs[self._tail]
        self._state[link.STATE_COMPLETED] = self.completed
        self._longs[self._done] = self.completed
        self._wake()

    def _write_fault(self, sequence: int, info: ErrorInfo) -> None:
        text = _encode_fault(info)
        at = self._base + records.RING_TEXT
        self._buffer[at : at + len(text)] = text
        self._words[(self._base + records.RING_TEXT_SIZE) >> 2] = len(text)
        self._words[(self._base + records.RING_RESULT) >> 2] = info.result
        self._longs[(self._base + records.RING_FAILED) >> 3] = sequence
        if info.result == ZeResult.ERROR_DEVICE_LOST:
            self.lost = info
            self._words[(self._base + records.RING_LOST) >> 2] = 1

    def _wake(self) -> None:
        linux.memory_fence()
        if self._words[self._waiters]:
            linux.futex_wake(self._done_address)


def _encode_fault(info: ErrorInfo) -> bytes:
    """The fault as msgpack in at most `RING_TEXT_MAX` bytes; long texts are cut, never the code."""
    cut = records.RING_TEXT_MAX
    while True:
        short = ErrorInfo(
            result=info.result,
            object=info.object[:cut],
            found=info.found[:cut],
            expected=info.expected[:cut],
            hint=info.hint[:cut],
        )
        data = msgspec.msgpack.encode(short)
        if len(data) <= records.RING_TEXT_MAX:
            return data
        cut //= 2


def _doomed(result: int) -> ErrorInfo:
    return ErrorInfo(
        result=result,
        object="submission",
        found="injected fault: it was to fail, and its engine died meanwhile",
        expected="a device without injected faults",
    )


def lost_fault(info: ErrorInfo) -> ErrorInfo:
    """What becomes of a queue whose ring is broken, for that reason."""
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST, object=info.object, found=info.found, expected=info.expected
    )


def cancelled_fault() -> ErrorInfo:
    """The fault of a submission whose driver did not want it any more."""
    return ErrorInfo(
        result=ZeResult.ERROR_NOT_AVAILABLE, object="submission", found="cancelled before it was done"
    )
