"""Runs submissions: takes one out of its ring, checks it, runs it for a slice, reports how it ended.

What a submission has done is noted as it goes, in memory that outlives the engine: after a reset it goes on
with the command that was interrupted, and only that one runs twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine import program as programs
from softnpu.emulator.engine.queue import EngineQueue, Submission, cancelled_fault, lost_fault
from softnpu.emulator.engine.scheduler import SLICE_NS
from softnpu.emulator.engine.steps import AGAIN, BLOCKED, GIVEN_UP, LOADING, NOTED_EVERY, Rest
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link

if TYPE_CHECKING:
    from softnpu.emulator.engine.context import EngineContext
    from softnpu.emulator.engine.engine import Engine
    from softnpu.emulator.interface.commands import MemoryAt

_LOOK_EVERY = NOTED_EVERY - 1  # mask of step numbers: the clock after each of many small copies would show
_LOOK_NS = 2_000_000
_DECODE_NS = 2_000_000
_LONG = 64 * 1024  # bytes of commands
_DECODING_AT_ONCE = 4
_SHORT_NS = 100_000  # shorter than this is charged as it is: looking at the CPU time takes 0.4 us
_LEAST_CHARGED = 32


class Runner:
    """The submission that runs, if one does."""

    def __init__(self, engine: Engine, tdr_ms: int) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._counters = engine.counters
        self._overlap = engine.overlap
        self._tdr_ns = tdr_ms * 1_000_000
        self._queue: EngineQueue | None = None
        self._submission: Submission | None = None
        self._abort: ErrorInfo | None = None  # why the submission that runs must end: decided once
        self._farewells: list[link.Report] = []  # of what was dropped while it runs
        self._look_due_ns = 0
        self._slice_end_ns = 0
        self._charged_ns = 0  # until when the time of this slice is in the accounts
        self._cpu_ns = 0  # of this process, when it was last looked at

    # ------------------------------------------------------------ one slice of one submission

    def run(self, queue: EngineQueue) -> None:
        """Runs the next submission of the queue to its end, or until it has to wait or to make room."""
        start = queue.ran_ns = self._charged_ns = time.monotonic_ns()
        try:
            submission = queue.next()
        except Refused as error:
            self._abandon(queue, lost_fault(error.info))
            return
        info: ErrorInfo | None = None
        try:
            if submission.fence:
                queue.fence(submission)
                if queue.closed:
                    return  # dropped by an order that was read on the way, and that was answered
            if queue.lost is not None:
                info = queue.lost
            elif queue.condemned == submission.sequence and queue.verdict is not None:
                info = queue.verdict
            elif submission.is_cancelled() and queue.pending_effect() is None:
                # with half of an effect done by a dead engine it comes too late: the other half follows
                info = cancelled_fault()
            else:
                if failpoints.active is not None:
                    failpoints.hit("engine.submit")
                queue.begin(start)
                waits = self._run_slice(queue, submission, start)
                if waits is not None and waits is not GIVEN_UP and self._abort is None:
                    self._put_off(queue, waits)
                    return
                if self._abort is not None:
                    info = self._abort
                elif waits is GIVEN_UP:
                    # its queue or this engine is gone: it did not end, and nobody may be told that it has
                    self._charge(queue, time.monotonic_ns())
                    queue.forget()
                    return
                elif (program := queue.blocked) is not None:
                    self._counters.commands += program.commands
                    self._counters.inferences += program.inferences
        except Refused as error:
            info = error.info
        except RuntimeError as error:
            info = _runtime_fault(error)
        except MemoryError:
            info = _memory_fault()
        now = time.monotonic_ns()
        used = now - self._charged_ns
        if used < _SHORT_NS and (queue.blocked is None or not queue.blocked.tiles):
            self._counters.busy_ns += used
            self.end(queue, submission, info)
            self._scheduler.charge(queue, used)  # nobody waits for that
        else:
            self._charge(queue, now)
            self.end(queue, submission, info)

    def _abandon(self, queue: EngineQueue, lost: ErrorInfo) -> None:
        """The ring of the queue is broken."""
        self.report(queue, lost)
        self._overlap.settle(queue)
        queue.forget()
        queue.abandon(lost)
        self._charge(queue, time.monotonic_ns())  # else a tail that never rests would be served first

    def end(self, queue: EngineQueue, submission: Submission | None, info: ErrorInfo | None) -> None:
        """The submission is over: tells everybody who waits for it."""
        self._counters.submissions += 1
        self._counters.publish()
        if info is not None:
            self._overlap.settle(queue)
            self.report(queue, info)
        if not queue.closed:
            queue.finish(submission, info)
        if queue.blocked is not None or queue.decoding is not None or queue.step or queue.give_up_ns:
            queue.forget()

    def report(self, queue: EngineQueue, info: ErrorInfo) -> None:
        """Counts a failure, and tells the supervisor of it unless the queue was lost before."""
        self._counters.count_fault()
        if queue.lost is None:
            self._engine.send(
                link.SubmissionFailed(
                    context=queue.context.number,
                    queue=queue.handle,
                    sequence=queue.completed + 1,
                    info=info.shortened(),
                )
            )

    def _run_slice(self, queue: EngineQueue, submission: Submission, start: int) -> object:
        """None when the submission has ended, else why not."""
        self._slice_end_ns = start + SLICE_NS
        self._queue, self._submission, self._abort = queue, submission, None
        try:
            program = queue.blocked
            if program is None:
                program = self._program(queue, submission)
                if program is None:
                    return AGAIN
                queue.blocked = program
            self._overlap.claim(queue, program.inference)
            if program.inference is not None and program.inference.overlaps:
                self._overlap.top_up(queue, program.inference)
            if failpoints.active is not None:
                return self._run_with_failpoints(queue, program)
            return self._run_steps(queue, program) if program.steps else None
        finally:
            self._queue = self._submission = None  # they would keep the client's memory mapped
            if (program := queue.blocked) is not None and program.inference is not None:
                # an inference that had begun early and whose turn ended without it: an injected fault, say
                program.inference.call_off()
            while self._farewells:
                self._engine.send(self._farewells.pop(0))

    def _run_with_failpoints(self, queue: EngineQueue, program: programs.Program) -> object:
        failpoints.hit("engine.running")
        run = partial(self._run_steps, queue, program)
        waits = self._engine.faults.run(queue, program, run, self.is_cancelled)
        if waits is None:
            failpoints.hit("engine.completing")
        return waits

    def _put_off(self, queue: EngineQueue, waits: object) -> None:
        """The submission goes on later: at once if it only made room, else when something has happened."""
        self._charge(queue, time.monotonic_ns())
        if queue.closed:
            return  # it was destroyed by an order that was read on the way
        queue.set_aside(queue.step)
        if waits is not AGAIN:
            self._engine.block(queue, None if waits is LOADING else time.monotonic_ns() + self._tdr_ns)

    def _charge(self, queue: EngineQueue, now: int) -> None:
        used = now - self._charged_ns
        self._charged_ns = now
        self._counters.busy_ns += used
        if (program := queue.blocked) is not None and program.tiles:
            self._counters.count_tiles(used * program.tiles)
        self._scheduler.charge(queue, used if used < _SHORT_NS else self._without_others(used))

    def _without_others(self, used: int) -> int:
        """Time in which the machine ran other programs, and not this one, is not the session's."""
        before, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        return max(min(used, self._cpu_ns - before), used // _LEAST_CHARGED)

    # ------------------------------------------------------------ its program

    def _program(self, queue: EngineQueue, submission: Submission) -> programs.Program | None:
        """The decoded command buffer; None when decoding it takes longer than now is time for.

        A long one also waits for others of its session: what is half decoded takes many times its size.
        """
        if queue.decoding is None:
            data = queue.command_buffer(submission)
            program = queue.context.program(submission.buffer, submission.offset, data)
            if program is not None:
                return program
            if len(data) > _LONG and self._engine.decoding(queue.share) >= _DECODING_AT_ONCE:
                return None
            queue.decoding = programs.Decoding(data, queue.context, self._engine, self)
        while (program := queue.decoding.advance(time.monotonic_ns() + _DECODE_NS)) is None:
            if self._look(queue, queue.step) is not None:
                return None
        queue.decoding = None
        if program.complete:
            queue.context.remember(submission.buffer, submission.offset, program)
        return program

    def _run_steps(self, queue: EngineQueue, program: programs.Program) -> object:
        """Runs the program from the queue's step on; None at its end, else why it does not go on."""
        steps, noted = program.steps, program.noted
        if queue.rest is not None:
            waits = self._run_rest(queue, queue.rest)
            if waits is not None:
                return waits
            queue.reached(queue.step, time.monotonic_ns())  # before the next command notes an effect
        first, last = queue.step, len(steps) - 1
        for index in range(first, len(steps)):
            if noted:
                queue.step = index
            waits = steps[index]()
            if waits is not None:
                if index != first:
                    queue.step, queue.give_up_ns = index, 0  # it got further: the watchdog counts anew
                if waits is BLOCKED or waits is LOADING or waits is GIVEN_UP:
                    return waits
                assert isinstance(waits, Iterator)
                waits = self._run_rest(queue, waits)
                if waits is not None:
                    return waits
            if (noted or not index & _LOOK_EVERY) and index != last:
                waits = self._look(queue, index + 1)
                if waits is not None:
                    return waits
        return None

    def _run_rest(self, queue: EngineQueue, rest: Rest) -> object:
        """A long command, part by part; when it has ended the queue's step is the next one."""
        queue.rest = rest
        for _ in rest:
            waits = self._look(queue, queue.step)
            if waits is not None:
                return waits
        queue.rest = None
        queue.step += 1
        return None

    # ------------------------------------------------------------ looking up from the work

    def _look(self, queue: EngineQueue, step: int) -> object:
        """Between two commands: notes how far it came; `GIVEN_UP` or `AGAIN` if it shall not go on now."""
        now = time.monotonic_ns()
        queue.reached(step, now)
        if now < self._look_due_ns:
            return GIVEN_UP if queue.closed else None
        if self.is_cancelled():
            return GIVEN_UP
        self._engine.look_for_doorbells()
        self._charge(queue, now)
        better = self._engine.better_claim(queue)
        if better is None or (better.level == queue.level and now < self._slice_end_ns):
            return None
        queue.step, queue.give_up_ns = step, 0  # it does not wait for anything: the watchdog counts anew
        return AGAIN

    # ------------------------------------------------------------ what a step may ask (`steps.Turn`)

    def is_cancelled(self) -> bool:
        """Whether the submission that runs must end now; reads the orders.

        The memory of a dead client must not wait until a long submission of it has come to its end.
        """
        self._look_due_ns = time.monotonic_ns() + _LOOK_NS
        self._engine.read_orders()
        submission = self._submission
        if self._abort is None and submission is not None and submission.is_cancelled():
            self._abort = cancelled_fault()
        return self._abort is not None or not self._engine.alive or self._queue is None or self._queue.closed

    def pending_effect(self) -> int | None:
        """What a dead engine noted for the current step."""
        assert self._queue is not None
        return self._queue.pending_effect()

    def note_effect(self, value: int) -> None:
        """Notes a value for the current step, before its effect begins."""
        assert self._queue is not None
        self._queue.note_effect(value)

    def note_event(self, at: MemoryAt, changes: int) -> None:
        """Notes that the current step changes this event, which has been changed so often before."""
        assert self._queue is not None
        self._queue.note_event(at, changes)

    def count_staged(self, size: int) -> None:
        """Counts bytes that were copied because a tensor could not be used in place."""
        self._counters.count_staged(size)

    def tell_when_over(self, dropped: EngineQueue | EngineContext, report: link.Report) -> None:
        """Tells the supervisor that something is dropped, once nothing of it writes any more.

        An inference that runs ends at the border of a layer, which may take a while.
        """
        queue = self._queue
        if queue is not None and (dropped is queue or dropped is queue.context):
            self._farewells.append(report)
        else:
            self._engine.send(report)

    def look_for_more(self) -> bool:
        """`is_cancelled`, asked while an inference runs beside which others may; begins them."""
        if self.is_cancelled():
            return True
        self._engine.look_for_doorbells()
        queue = self._queue
        if queue is not None and queue.blocked is not None and queue.blocked.inference is not None:
            self._overlap.top_up(queue, queue.blocked.inference)
        return False

    def abort(self, order: link.Abort) -> None:
        """The supervisor wants this submission to end, if it is still the one that runs."""
        queue = self._queue
        if queue is None or queue.completed + 1 != order.sequence:
            return
        if queue.handle == order.queue and queue.context.number == order.context:
            self._abort = order.info


def _memory_fault() -> ErrorInfo:
    return ErrorInfo(
        result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        object="submission",
        found="the engine ran out of memory",
        expected="memory to run it",
        hint="submit shorter command lists, or give the machine more memory",
    )


def _runtime_fault(error: RuntimeError) -> ErrorInfo:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ErrorInfo(
        result=ZeResult.ERROR_UNKNOWN,
        object="inference",
        found=lines[-1] if lines else type(error).__name__,
        expected="an inference that ends",
    )
