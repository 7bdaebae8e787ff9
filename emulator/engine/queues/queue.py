"""A command queue in the engine: reads submissions, logs their progress, reports their results."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from mmap import mmap
from typing import Protocol

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.commands.program import Decoding, Program
from softnpu.emulator.engine.commands.steps import EventWait, Parts
from softnpu.emulator.engine.memory import foreign
from softnpu.emulator.engine.memory.mappings import Memory
from softnpu.emulator.engine.queues.context import EngineContext
from softnpu.emulator.interface import commands, records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.interface.ring import DeviceRing
from softnpu.emulator.interface.shared import EventRecord, FenceRecord
from softnpu.emulator.links import engine as link

_LARGEST = 2**64 - 1
_SEQUENCE_BEFORE, _TICKET_BEHIND = bytes(8), bytes(records.SLOT_SIZE - records.SLOT_TICKET)


class Submission:
    """A private copy of one slot, and the objects of its handles once looked up.

    `content` is the slot without sequence number, ticket and result.
    """

    __slots__ = (
        "buffer",
        "commands",
        "content",
        "fence",
        "fence_offset",
        "fence_record",
        "flags",
        "offset",
        "sequence",
        "size",
        "ticket",
    )

    def __init__(self, sequence: int, content: bytes, ticket: int) -> None:
        self.sequence = sequence
        self.content = content
        self.ticket = ticket
        slot = SLOT.unpack(_SEQUENCE_BEFORE + content + _TICKET_BEHIND)
        _, self.buffer, self.offset, self.size, self.flags, self.fence, self.fence_offset, *_ = slot
        self.commands: tuple[mmap, slice] | None = None
        self.fence_record: FenceRecord | None = None

    def is_cancelled(self) -> bool:
        """Whether the driver has cancelled it."""
        return self.fence_record is not None and self.fence_record.is_cancelled(self.ticket)


class Prepared(Protocol):
    """Submissions prepared for the C++ part (`prepared`)."""

    def forget(self, handles: Iterable[int] | None = None) -> None:
        """Forget submissions that use one of these handles, or all."""
        ...

    def end(self) -> None:
        """Give up what was counted for the session. It is not used any more."""
        ...


class Place(enum.Enum):
    """The scheduling state of a queue (`queue_table`)."""

    ASLEEP = "the engine looks at its ring when the doorbell is rung"
    AWAKE = "the engine polls its ring"
    BLOCKED = "its submission waits for an event or an image"
    PACED = "the modelled time of its submission is not over"


class EngineQueue(DeviceRing):
    """A ring, and the progress of its next submission."""

    def __init__(
        self, context: EngineContext, message: link.QueueAdd, ring: Memory, states: memoryview
    ) -> None:
        if ring.size < records.ring_size(message.slots):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "ring",
                found=f"{ring.size} bytes",
                expected=f"{records.ring_size(message.slots)}",
            )
        state = message.state * (link.QUEUE_STATE_SIZE // 8)
        self._state = states[state : state + link.QUEUE_STATE_SIZE // 8]
        super().__init__(ring.mapping.shared, ring.offset, message.slots, self._state[link.STATE_COMPLETED])
        self.context = context
        self.handle = message.queue
        self.share = context.share
        self._priority = message.priority
        self.level = 0
        self.set_background(message.background)
        self.turbo = message.turbo
        self.poisoned = message.poisoned
        self.poisoned_info = message.poisoned_info
        self.closed = False
        self.place = Place.ASLEEP
        self.wait: EventWait | None = None  # while blocked by one
        self.ran_ns = 0  # when it last ran
        self.lost: ErrorInfo | None = None
        # the submission that has begun: its program or partial decoding, the next step, remaining parts of
        # that step, and when its wait times out
        self.decoding: Decoding | None = None
        self.program: Program | None = None
        self.step = 0
        self.parts: Parts | None = None
        self.deadline_ns = 0
        self.device_ns = 0  # its position on the modelled clock
        self.resume_ns = 0  # when a paced submission ends, on the host's clock
        self.paced_end: tuple[frozenset[tuple[int, int]], int] = (frozenset(), 0)  # see `modelled_runs`
        self._last: Submission | None = None  # most programs repeat their submissions
        self.prepared: Prepared | None = None  # submissions that the C++ part can run
        self.logged_waiting = -1

    def set_background(self, background: bool) -> None:
        """Set the level: 1 low, 2 normal, 3 high; 0 for background workloads."""
        self.level = 0 if background else self._priority + 1

    # ------------------------------------------------------------ after an engine reset

    def resume(self) -> None:
        """Settle submissions that a dead engine began, or ended without telling the client.

        Call it once all objects of the device are announced, before anything runs.
        """
        state = self._state
        reached = state[link.STATE_REACHED]
        if reached & ~link.REACHED_MASK == self._first_step_id():
            self.step = reached & link.REACHED_MASK
        self._settle_event()
        has_reason = self.poisoned == self.completed + 1 and self.poisoned_info is not None
        # a watchdog that kills a hanging engine reports the reason itself
        if state[link.STATE_INJECTED] == self.completed + 1 and not has_reason:
            self.poisoned = self.completed + 1
            self.poisoned_info = _injected(int(state[link.STATE_INJECTED_RESULT]))
        self.repeat_end()

    def repeat_end(self) -> None:
        """Report the last ended submission to the client, unless already reported."""
        # until the ring shows its end this submission owns the slot, and its fence may be unsignalled
        if self.is_published():
            self.wake()
        else:
            self._signal_fence(self.completed)
            self.publish()

    def _settle_event(self) -> None:
        """Find out whether the command begun by the dead engine has changed its event."""
        state = self._state
        handle = state[link.STATE_INTENT_EVENT]
        if not handle or state[link.STATE_INTENT_STEP] != self._step_id():
            return
        try:
            memory = self.context.space.memory(handle)
        except Refused:
            return  # the client has freed it: the command will be refused
        event = EventRecord(memory.mapping.shared, memory.offset + state[link.STATE_INTENT_OFFSET])
        if event.changes != state[link.STATE_INTENT_VALUE]:
            self.step += 1
            state[link.STATE_REACHED] = self._step_id()
        else:
            # another queue may change the event before this one: a later engine would miscount
            state[link.STATE_INTENT_STEP] = 0

    def _signal_fence(self, sequence: int) -> None:
        submission = Submission(*self.copy_slot(sequence))
        if submission.sequence != sequence or not submission.fence:
            return
        try:
            fence = self.fence(submission)
        except Refused:
            return  # the client has freed it
        fence.signal(submission.ticket, self.result(sequence))
        fence.wake()  # the engine that died may have cleared the mark of its waiters

    # ------------------------------------------------------------ submissions

    def next(self) -> Submission:
        """Return a copy of the next submission; refuse a corrupted ring."""
        sequence = self.completed + 1
        waiting = self.waiting()
        stored, content, ticket = self.copy_slot(sequence)
        submission = self._last
        if submission is not None and submission.content == content:
            submission.sequence, submission.ticket = stored, ticket
        else:
            submission = self._last = Submission(stored, content, ticket)
        if not 0 < waiting <= self.slots or submission.sequence != sequence or submission.flags:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"command queue {self.handle:#018x}",
                found=f"{waiting} submissions, slot {submission.sequence}, flags {submission.flags:#x}",
                expected=f"1 to {self.slots} submissions, slot {sequence}, no flags",
                hint="the ring was overwritten",
            )
        return submission

    def taken(self, sequence: int) -> Submission | None:
        """Return the copy of this submission made by `next`, or None."""
        submission = self._last
        return submission if submission is not None and submission.sequence == sequence else None

    def is_cancelled(self) -> bool:
        """Whether the next submission was cancelled or is invalid; its turn decides how it ends."""
        try:
            submission = self.next()
            if submission.fence:
                self.fence(submission)
        except Refused:
            return True
        return submission.is_cancelled()

    def peek(self, behind: int) -> Submission | None:
        """Return a copy of the submission after the next `behind` ones, or None."""
        if not behind < self.waiting() <= self.slots:
            return None
        sequence = self.completed + 1 + behind
        submission = Submission(*self.copy_slot(sequence))
        return submission if submission.sequence == sequence and not submission.flags else None

    def command_buffer(self, submission: Submission) -> bytes:
        """Return a private copy of its commands: the client may change the original."""
        if submission.commands is not None:
            buffer, at = submission.commands
            return buffer[at]
        offset, size = submission.offset, submission.size
        memory = self.context.space.own_memory(submission.buffer)
        if size > commands.MAX_BUFFER or offset > memory.size or size > memory.size - offset:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"command buffer in memory {submission.buffer:#018x}",
                found=f"bytes {offset} to {offset + size}",
                expected=f"at most {commands.MAX_BUFFER} bytes inside its {memory.size} bytes",
            )
        start = memory.offset + offset
        buffer, at = submission.commands = memory.mapping.shared.buffer, slice(start, start + size)
        self.context.users.note(submission.buffer, self.handle)
        return buffer[at]

    def fence(self, submission: Submission) -> FenceRecord:
        """Look up the fence of a submission, and keep it with the submission."""
        if submission.fence_record is not None:
            return submission.fence_record
        memory = self.context.space.own_memory(submission.fence)
        if submission.fence_offset > memory.size - records.SIGNAL_SIZE or submission.fence_offset % 8:
            raise refuse(
                ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT,
                f"memory {submission.fence:#018x}",
                found=f"fence at offset {submission.fence_offset}",
                expected=f"a multiple of 8 with 64 bytes inside its {memory.size} bytes",
            )
        fence = FenceRecord(memory.mapping.shared, memory.offset + submission.fence_offset)
        submission.fence_record = fence
        self.context.users.note(submission.fence, self.handle)
        return fence

    def drop_lookups(self, handles: Iterable[int] | None = None) -> None:
        """Forget lookups of these handles, or of all: they must not stay mapped or be used."""
        self._last = None
        if self.prepared is not None:
            self.prepared.forget(handles)

    def drop_prepared(self) -> None:
        """Drop what is prepared, whatever state it is in."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.end()

    @property
    def has_begun(self) -> bool:
        """Whether its next submission has begun, regardless of what the client writes into the ring."""
        return self.program is not None or self.decoding is not None

    # ------------------------------------------------------------ for the C++ part

    @property
    def is_between(self) -> bool:
        """Whether its next submission has not begun and needs no special handling."""
        started = self.program is not None or self.decoding is not None or self.step
        return not started and self.parts is None and self.lost is None and not self.closed

    @property
    def state_words(self) -> memoryview:
        """Its record in memory that outlives the engine."""
        return self._state

    @property
    def ring_address(self) -> int:
        """The address of the mapped ring."""
        return self._completed_address - records.RING_COMPLETED

    # ------------------------------------------------------------ log that outlives the engine

    def begin(self, now_ns: int) -> None:
        """Log that the next submission runs."""
        self._state[link.STATE_PAUSE] = 0
        self._state[link.STATE_STARTED] = now_ns
        self._state[link.STATE_RUNNING] = self.completed + 1

    def reached(self, step: int, now_ns: int) -> None:
        """Log that the steps before this one have ended: the next engine skips them."""
        self._state[link.STATE_STARTED] = now_ns
        self._state[link.STATE_REACHED] = self._first_step_id() | step

    def charge(self, used_ns: int) -> None:
        """Count device time used by this queue."""
        self._state[link.STATE_SPENT] += used_ns

    def count_inferences(self, inferences: int) -> None:
        """Count the inferences of a successful submission."""
        self._state[link.STATE_INFERENCES] += inferences

    def log_waiting(self) -> int:
        """Log the number of unfinished submissions, by the client's tail; return it."""
        waiting = min(max(self.waiting(), 0), self.slots)
        if waiting != self.logged_waiting:
            self._state[link.STATE_WAITING] = self.logged_waiting = waiting
        return waiting

    def suspend(self, step: int, pause: link.QueuePause) -> None:
        """Log that the submission is paused, and not to blame if the engine dies."""
        self._state[link.STATE_PAUSE] = pause
        self._state[link.STATE_RUNNING] = 0
        self._state[link.STATE_REACHED] = self._first_step_id() | step

    def pending_intent(self) -> int | None:
        """Return the value that a dead engine logged for the current step, or None."""
        if self._state[link.STATE_INTENT_STEP] != self._step_id() or self._state[link.STATE_INTENT_EVENT]:
            return None
        return self._state[link.STATE_INTENT_VALUE]

    def log_intent(self, value: int) -> None:
        """Log a value for the current step, before its effect begins.

        The step is then finished exactly once: by this engine, or by the next one, which reads the value.
        """
        if self.program is not None and self.program.foreign:
            foreign.check(self.program.foreign)  # the next engine would deliver results of void data
        self._log_step(value, 0, 0)

    def log_event_intent(self, at: MemoryAt, changes: int) -> None:
        """Log that the current step changes this event, and its previous count of changes.

        After a reset the next engine compares this count and skips the step if the change has happened.
        """
        self._log_step(changes, at.memory, at.offset)

    def log_injected(self, result: int, injection: int, hits: int) -> None:
        """Log that the next submission ends with this result, by hit number `hits` of an injection."""
        state = self._state
        state[link.STATE_INJECTED] = 0
        state[link.STATE_INJECTED_RESULT] = result
        state[link.STATE_INJECTION] = injection
        state[link.STATE_INJECTION_HITS] = hits
        state[link.STATE_INJECTED] = self.completed + 1

    def logged_injection(self) -> tuple[int, int]:
        """Return the injection logged for the next submission, 0 for none, and its hits then."""
        if self._state[link.STATE_INJECTED] != self.completed + 1:
            return 0, 0
        return self._state[link.STATE_INJECTION], self._state[link.STATE_INJECTION_HITS]

    def _log_step(self, value: int, event: int, offset: int) -> None:
        # a death between these stores leaves an effect not begun, and no log entry of it
        state = self._state
        state[link.STATE_INTENT_STEP] = 0
        state[link.STATE_INTENT_VALUE] = value
        state[link.STATE_INTENT_EVENT] = event
        state[link.STATE_INTENT_OFFSET] = offset
        state[link.STATE_INTENT_STEP] = self._step_id()

    def _step_id(self) -> int:
        return self._first_step_id() | self.step

    def _first_step_id(self) -> int:
        # a corrupted ring may claim any number of submissions
        return ((self.completed + 1) << link.REACHED_BITS) & _LARGEST

    # ------------------------------------------------------------ the end of a submission

    def reset(self) -> None:
        """Drop the state of the submission that has begun."""
        self.program = None
        self.step = self.deadline_ns = 0
        if self.decoding is not None or self.parts is not None:
            self.decoding = self.parts = None
            self.share.decoding.discard(self)

    def finish(self, submission: Submission | None, info: ErrorInfo | None) -> None:
        """End the next submission: store its result, signal its fence, wake the waiters.

        The store of `STATE_COMPLETED` ends it, for this engine and the next: stores before it are not yet
        valid, those after it are repeated by the next engine.
        """
        sequence = self.completed + 1
        if info is not None:
            self._fail(sequence, info)
        result = 0 if info is None else int(info.result)
        self.set_result(sequence, result)
        self.completed = sequence
        self._state[link.STATE_COMPLETED] = sequence
        if failpoints.active is not None:
            failpoints.hit("engine.ended")
        if submission is not None and (fence := submission.fence_record or self._late_fence(submission)):
            fence.signal(submission.ticket, result)
        if failpoints.active is not None:
            failpoints.hit("engine.signal")
        self.publish()

    def _late_fence(self, submission: Submission) -> FenceRecord | None:
        """Return the fence of a submission that failed before its lookup: its client waits for it."""
        if not submission.fence:
            return None
        try:
            return self.fence(submission)
        except Exception:  # noqa: BLE001  # possibly the original failure
            return None

    def abandon(self, info: ErrorInfo) -> None:
        """Lose a queue with a corrupted ring, and skip the submissions it claims to hold."""
        self._fail(self.completed + 1, info)
        waiting = self.waiting()
        for sequence in range(self.completed + 1, self.completed + 1 + min(waiting, self.slots)):
            self.set_result(sequence, info.result)  # none of them will run
        self.completed += waiting
        self._state[link.STATE_COMPLETED] = self.completed
        self.publish()

    def lose(self, info: ErrorInfo) -> None:
        """End every submission with this error, from now on."""
        self.lost = info
        self.set_lost()

    def _fail(self, sequence: int, info: ErrorInfo) -> None:
        self.set_failure(sequence, info)
        if info.result == ZeResult.ERROR_DEVICE_LOST:
            self.lose(info)


def _injected(result: int) -> ErrorInfo:
    return ErrorInfo(
        result=result,
        object="submission",
        found="injected fault: it was to fail, and its engine died meanwhile",
        expected="a device without injected faults",
    )
