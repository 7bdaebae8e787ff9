"""The runner: take a submission from its ring, check it, run it for a slice, report its end.

Progress is logged in memory that outlives the engine: after a reset a submission continues with the
interrupted command, and only that one runs twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from softnpu.emulator.common import failpoints
from softnpu.emulator.common.arrays import Words
from softnpu.emulator.engine import failures
from softnpu.emulator.engine.commands.modelled_runs import ModelledRuns
from softnpu.emulator.engine.commands.program import Decoding, Program
from softnpu.emulator.engine.commands.running_submission import RunningSubmission
from softnpu.emulator.engine.commands.steps import (
    BLOCKED,
    CANCELLED,
    JOURNAL_EVERY,
    LOADING,
    PACED,
    PREEMPTED,
    EventWait,
    Parts,
    Pause,
)
from softnpu.emulator.engine.counters import Counters, Work
from softnpu.emulator.engine.fast_path.native_calls import FastPath
from softnpu.emulator.engine.memory import foreign
from softnpu.emulator.engine.queues.polled import Schedulable
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.queues.scheduler import SLICE_NS, Scheduler
from softnpu.emulator.engine.running.endings import Endings
from softnpu.emulator.engine.running.faults import InjectedFaults
from softnpu.emulator.engine.running.overlap import Overlap
from softnpu.emulator.engine.running.slice_trace import write_slice
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.platforms import Platform

_CHECKPOINT_MASK = JOURNAL_EVERY - 1  # reading the clock after each small copy would cost too much
_POLL_NS = 2_000_000
_DECODE_NS = 2_000_000
_LONG_BUFFER = 64 * 1024
_MAX_DECODING = 4
_SHORT_NS = 100_000  # shorter times are charged unadjusted
_MIN_CHARGED_PART = 32
_PAUSES = {
    BLOCKED: link.QueuePause.EVENT,
    LOADING: link.QueuePause.LOAD,
    PREEMPTED: link.QueuePause.NONE,
    PACED: link.QueuePause.PACE,
}


class EngineLoop(Protocol):
    """The engine's loop as seen by a running submission."""

    @property
    def alive(self) -> bool:
        """Whether the supervisor is alive."""
        ...

    @property
    def send(self) -> Callable[[link.Report], None]:
        """The function that sends a report to the supervisor."""
        ...

    def read_messages(self) -> None:
        """Handle pending messages from the supervisor, of many only some."""
        ...

    def poll_doorbells(self) -> None:
        """Poll the rings of clients that rang their doorbell."""
        ...


class Runner:
    """Runs one submission at a time."""

    def __init__(
        self,
        loop: EngineLoop,
        queues: QueueTable,
        scheduler: Scheduler,
        counters: Counters,
        overlap: Overlap,
        faults: InjectedFaults,
        platform: Platform,
        modelled_runs: ModelledRuns | None,
        errors: InternalErrors,
        tdr_ms: int,
    ) -> None:
        self._loop = loop
        self._queues = queues
        self._scheduler = scheduler
        self._counters = counters
        self._overlap = overlap
        self._faults = faults
        self._platform = platform
        self._modelled_runs = modelled_runs
        self._tdr_ns = tdr_ms * 1_000_000
        self._endings = Endings(loop.send, queues, scheduler, counters, overlap, errors)
        self.fast_path: FastPath | None = None  # learns successful submissions
        self._running = RunningSubmission(
            counters,
            modelled_runs,
            self.is_cancelled,
            self.poll_overlap,
            self.write_metrics,
            queues.wake_signalled,
        )
        self._queue: EngineQueue | None = None  # of the running submission
        self._submission: Submission | None = None
        self._abort: ErrorInfo | None = None  # why the running submission must end: decided once
        self._reports: list[link.Report] = []  # sent when the running submission has ended
        self._poll_due_ns = 0
        self._slice_end_ns = 0
        self._charged_ns = 0  # end of the charged part of this slice
        self._cpu_ns = 0  # CPU time of this process at the start of this turn or its last charge
        self._stalled_ns = 0  # of the faults, at the last charge

    # ------------------------------------------------------------ one slice of one submission

    def run(self, queue: EngineQueue) -> None:
        """Run the next submission of the queue to its end, or until it waits or is preempted.

        An unexpected exception ends this submission and nothing else.
        """
        sequence = queue.completed + 1
        try:
            self._run(queue)
        except Exception as error:  # noqa: BLE001
            self._endings.fail(queue, sequence, error)
        while self._reports:  # of objects dropped meanwhile: their memory and records are no longer used
            self._loop.send(self._reports.pop(0))

    def _run(self, queue: EngineQueue) -> None:
        start = queue.ran_ns = self._charged_ns = time.monotonic_ns()
        self._cpu_ns = time.process_time_ns()
        try:
            submission = queue.next()
        except Refused as error:
            self._endings.abandon(queue, error.info)
            # charged, or a constantly changing tail would be served first
            self._charge(queue, time.monotonic_ns())
            return
        info: ErrorInfo | None = None
        try:
            if submission.fence:
                queue.fence(submission)
                if queue.closed:
                    return  # dropped by a message read and answered meanwhile
            if queue.lost is not None:
                info = queue.lost
            elif queue.poisoned == submission.sequence and queue.poisoned_info is not None:
                info = queue.poisoned_info
            elif submission.is_cancelled() and queue.pending_intent() is None:
                # an effect half done by a dead engine cannot be cancelled: it is completed
                info = failures.cancelled()
            else:
                if failpoints.active is not None:
                    failpoints.hit("engine.submit")
                queue.begin(start)
                pause = self._run_slice(queue, submission, start)
                if pause is not None and pause is not CANCELLED and self._abort is None:
                    self._suspend(queue, pause)
                    return
                if self._abort is not None:
                    info = self._abort
                elif pause is CANCELLED:
                    # its queue or this engine is gone: it did not end, so do not report that
                    self._charge(queue, time.monotonic_ns())
                    queue.reset()
                    return
                elif (program := queue.program) is not None:
                    self._count(queue, program)
        except Refused as error:
            info = error.info
        except RuntimeError as error:
            info = failures.failed_inference(error)
        except MemoryError:
            info = failures.out_of_memory()
        if info is not None and (program := queue.program) is not None and program.foreign:
            # with truncated memory OpenVINO's message is meaningless
            info = foreign.failure_of(program.foreign) or info
        self._end_turn(queue, submission, info)

    def resume(self, queue: EngineQueue) -> None:
        """Settle a queue left by a dead engine; if that fails the queue is lost."""
        with self._guarded(queue):
            queue.resume()

    def end_waiting(self, queue: EngineQueue, info: ErrorInfo) -> None:
        """End the next submission of a queue that does not run, with this error."""
        queue.ran_ns = time.monotonic_ns()
        with self._guarded(queue):
            submission: Submission | None = None
            with contextlib.suppress(Refused):  # the fence's memory was freed
                submission = queue.next()
                if submission.fence:
                    queue.fence(submission)
            self._endings.end(queue, submission, info)
        self._queues.restore(queue)

    @contextlib.contextmanager
    def _guarded(self, queue: EngineQueue) -> Iterator[None]:
        """Like `run`, for rare operations."""
        sequence = queue.completed + 1
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._endings.fail(queue, sequence, error)

    def _end_turn(self, queue: EngineQueue, submission: Submission, info: ErrorInfo | None) -> None:
        """Charge the turn in which a submission ends, and end it."""
        now = time.monotonic_ns()
        used, program = now - self._charged_ns, queue.program
        if used < _SHORT_NS and (program is None or not program.tiles):
            self._counters.busy_ns += used
            queue.charge(used)
            self._endings.end(queue, submission, info)
            self._scheduler.charge(queue, used)  # after the end, so that its waiters are not delayed
        else:
            self._charge(queue, now)
            self._endings.end(queue, submission, info)
        if self.fast_path is not None and program is not None and info is None and not queue.closed:
            self.fast_path.learn(queue, submission, program)

    def _count(self, queue: EngineQueue, program: Program) -> None:
        """Count the work of a successful submission."""
        counters = self._counters
        counters.commands += program.commands
        if program.inferences:
            counters.inferences += program.inferences
            queue.count_inferences(program.inferences)
            for inference in program.executions:
                counters.count_inference(inference.count())
        if program.read or program.written:
            counters.count_traffic(program.read, program.written)

    def _run_slice(self, queue: EngineQueue, submission: Submission, start: int) -> Pause | None:
        """Run a slice; return None if the submission has ended, else the pause."""
        self._slice_end_ns = start + SLICE_NS
        self._queue = self._running.queue = queue
        self._submission, self._abort = submission, None
        try:
            program = queue.program
            if program is None:
                program = self._decode(queue, submission)
                if program is None:
                    return PREEMPTED
                queue.program = program
            if program.foreign:
                foreign.check(program.foreign)
            self._overlap.begin(queue, program.inference)
            if failpoints.active is not None:
                return self._run_with_failpoints(queue, program)
            return self._run_steps(queue, program) if program.steps else None
        finally:
            self._queue = self._submission = None  # they would keep the client's memory mapped
            del self._running.queue
            if (program := queue.program) is not None and program.inference is not None:
                # started early, but its turn ended without it, e.g. by an injected fault
                program.inference.cancel_early()

    def _run_with_failpoints(self, queue: EngineQueue, program: Program) -> Pause | None:
        failpoints.hit("engine.running")
        run = partial(self._run_steps, queue, program)
        pause = self._faults.run(queue, program, run, self.is_cancelled)
        if pause is None:
            failpoints.hit("engine.completing")
        return pause

    def _suspend(self, queue: EngineQueue, pause: Pause) -> None:
        """Suspend the submission until its next turn or the end of its wait."""
        self._charge(queue, time.monotonic_ns())
        if queue.closed:
            return  # destroyed by a message read meanwhile
        if trace.active is not None:
            write_slice(trace.active, queue, None, False)
        queue.suspend(queue.step, _PAUSES[pause])
        if pause is PREEMPTED:
            return
        if pause is PACED:
            self._queues.pace(queue)
            return
        # busy time does not count: the signaller may have been waiting for its turn
        deadline_ns = time.monotonic_ns() + self._tdr_ns - self._counters.busy_ns
        if pause is LOADING:
            self._queues.block(queue, 0, loading=True)
        else:
            self._queues.block(queue, deadline_ns, _wait_of(queue))

    def _charge(self, queue: EngineQueue, now: int) -> None:
        used = now - self._charged_ns
        self._charged_ns = now
        queue.charge(used)
        tiles = 0 if queue.program is None else queue.program.tiles
        if not tiles or self._modelled_runs is None or not self._modelled_runs.paced:
            self._counters.busy_ns += used
            self._counters.count_tiles(used * tiles)
        own = used if used < _SHORT_NS else self._own_time(used)
        beside = self._overlap.beside(queue)
        for sharer in (queue, *beside):
            self._scheduler.charge(sharer, own // (1 + len(beside)))

    def _own_time(self, used: int) -> int:
        """Subtract the time taken by other programs or by an injected stall."""
        before, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        stalled, self._stalled_ns = self._stalled_ns, self._faults.stalled_ns
        worked = used - (self._stalled_ns - stalled)
        return max(min(worked, self._cpu_ns - before), used // _MIN_CHARGED_PART)

    # ------------------------------------------------------------ its program

    def _decode(self, queue: EngineQueue, submission: Submission) -> Program | None:
        """Return the decoded command buffer, or None if decoding continues later.

        Partial decodings take many times the buffer's size, so few long ones per session are in progress.
        """
        if queue.decoding is None:
            data = queue.command_buffer(submission)
            program = queue.context.programs.get(submission.buffer, submission.offset, data)
            if program is not None:
                return program
            if len(data) > _LONG_BUFFER and len(queue.share.decoding) >= _MAX_DECODING:
                return None
            queue.decoding = Decoding(data, queue.context.space, self._platform, self._running)
            queue.share.decoding.add(queue)
        while (program := queue.decoding.advance(time.monotonic_ns() + _DECODE_NS)) is None:
            if self._checkpoint(queue, queue.step) is not None:
                return None
        queue.decoding = None
        queue.share.decoding.discard(queue)
        if program.complete:
            queue.context.programs.add(submission.buffer, submission.offset, program)
        return program

    def _run_steps(self, queue: EngineQueue, program: Program) -> Pause | None:
        """Run the program from the queue's step on; return None at its end."""
        steps, journaled = program.steps, program.journaled
        if queue.parts is not None:
            pause = self._run_parts(queue, queue.parts)
            if pause is not None:
                return pause
            queue.reached(queue.step, time.monotonic_ns())  # before the next command logs an intent
        first, last = queue.step, len(steps) - 1
        for index in range(first, len(steps)):
            if journaled:
                queue.step = index
            result = steps[index]()
            if result is not None:
                if index != first:
                    queue.step, queue.deadline_ns = index, 0  # progress: the watchdog starts again
                pause = result if isinstance(result, Pause) else self._run_parts(queue, result)
                if pause is not None:
                    return pause
            if (journaled or not index & _CHECKPOINT_MASK) and index != last:
                if program.foreign:
                    foreign.check(program.foreign)
                pause = self._checkpoint(queue, index + 1)
                if pause is not None:
                    return pause
        if program.foreign:
            foreign.check(program.foreign)
        return None

    def _run_parts(self, queue: EngineQueue, parts: Parts) -> Pause | None:
        """Run a long command part by part; at its end advance the queue's step."""
        queue.parts = parts
        for part in parts:
            pause = part or self._checkpoint(queue, queue.step)
            if pause is not None:
                return pause
        queue.parts = None
        if queue.program is not None and queue.program.foreign:
            foreign.check(queue.program.foreign)
        queue.step += 1
        return None

    def _checkpoint(self, queue: EngineQueue, step: int) -> Pause | None:
        """Log the progress between two commands; return the pause if the submission must yield."""
        now = time.monotonic_ns()
        queue.reached(step, now)
        if now < self._poll_due_ns:
            return CANCELLED if queue.closed else None
        if self.is_cancelled():
            return CANCELLED
        self._loop.poll_doorbells()
        self._charge(queue, now)
        # even if alone: the clock of its level advances
        best: Schedulable | None = self._scheduler.pick(self._queues.awake, self._queues.chores.waiting)
        if best is None or best is queue or (best.level == queue.level and now < self._slice_end_ns):
            return None
        queue.step, queue.deadline_ns = step, 0  # not waiting: the watchdog starts again
        return PREEMPTED

    # ------------------------------------------------------------ messages about the running submission

    def abort(self, message: link.Abort) -> None:
        """Abort this submission if it is still running."""
        queue = self._queue
        if queue is None or queue.completed + 1 != message.sequence:
            return
        if queue.handle == message.queue and queue.context.number == message.context:
            self._abort = message.info

    def report_dropped(self, report: link.QueueDropped | link.ContextDropped) -> None:
        """Report that a queue or context is dropped, once it no longer writes memory.

        A running inference ends at a layer boundary, which may take a while.
        """
        queue = self._queue
        runs = queue is not None and queue.context.number == report.context
        if isinstance(report, link.QueueDropped):
            runs = runs and queue is not None and queue.handle == report.queue
        if runs:
            self._reports.append(report)
        else:
            self._loop.send(report)

    # ------------------------------------------------------------ for its steps: see `RunningSubmission`

    def is_cancelled(self) -> bool:
        if self._queue is None:  # within a call of C++: no message may be handled
            return time.monotonic_ns() >= self._running.called_until_ns
        # frees memory of dead clients before a long submission has ended
        self._poll_due_ns = time.monotonic_ns() + _POLL_NS
        self._loop.read_messages()
        submission = self._submission
        if self._abort is None and submission is not None and submission.is_cancelled():
            self._abort = failures.cancelled()
        return self._abort is not None or not self._loop.alive or self._queue is None or self._queue.closed

    def poll_overlap(self) -> bool:
        if self.is_cancelled():
            return True
        self._loop.poll_doorbells()
        queue = self._queue
        if queue is not None and queue.program is not None and queue.program.inference is not None:
            self._overlap.poll(queue, queue.program.inference)
        return False

    def write_metrics(self, out: Words, done: Work) -> None:
        now = time.monotonic_ns()
        used = now - self._charged_ns
        program = None if self._queue is None else self._queue.program
        tile_ns = used * program.tiles if program is not None else 0
        self._counters.snapshot(out, now, used, tile_ns, done)


def _wait_of(queue: EngineQueue) -> EventWait | None:
    """Return the step at which a queue waits for an event; None if it waits for something else."""
    steps = () if queue.program is None else queue.program.steps
    step = steps[queue.step] if queue.step < len(steps) else None
    return step if isinstance(step, EventWait) else None


make: Callable[..., Runner] = Runner
"""What makes the runner of this engine."""
