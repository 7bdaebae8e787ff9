"""How submissions end: in success, with an error, with a corrupted ring, or by an engine defect."""

from __future__ import annotations

import time
from collections.abc import Callable

from softnpu.emulator.engine.commands.inference import Inference
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.memory import foreign
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.engine.running.overlap import Overlap
from softnpu.emulator.engine.running.slice_trace import write_slice
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.internal_errors import InternalErrors


class Endings:
    """Ends submissions; `send` reports to the supervisor."""

    def __init__(
        self,
        send: Callable[[link.Report], None],
        queues: QueueTable,
        scheduler: Scheduler,
        counters: Counters,
        overlap: Overlap,
        errors: InternalErrors,
    ) -> None:
        self._send = send
        self._queues = queues
        self._scheduler = scheduler
        self._counters = counters
        self._overlap = overlap
        self._errors = errors

    def end(self, queue: EngineQueue, submission: Submission | None, info: ErrorInfo | None) -> None:
        """End the next submission of the queue and signal it."""
        self._counters.submissions += 1
        self._counters.publish()
        if info is not None:
            self._overlap.cancel(queue)
            self._report(queue, info)
        if trace.active is not None:
            write_slice(trace.active, queue, info, True)
        if not queue.closed:
            queue.finish(submission, info)
        if queue.program is not None or queue.decoding is not None or queue.step or queue.deadline_ns:
            queue.reset()

    def abandon(self, queue: EngineQueue, reason: ErrorInfo) -> None:
        """Lose a queue, and skip the submissions its ring claims to hold."""
        lost = ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object=reason.object,
            found=reason.found,
            expected=reason.expected,
        )
        self._report(queue, lost)
        self._overlap.cancel(queue)
        queue.reset()
        queue.abandon(lost)

    def fail(self, queue: EngineQueue, sequence: int, error: Exception) -> None:
        """End the submission in which an unexpected exception was raised, leaving nothing half done.

        If its end was already logged, only the rest of that is repeated.
        """
        start = time.monotonic_ns()
        self._overlap.cancel(queue)  # an early inference must no longer write memory
        program = queue.program
        queue.drop_prepared()
        if program is not None:
            queue.context.programs.drop(program)
            step = program.steps[queue.step] if queue.step < len(program.steps) else None
            if isinstance(step, Inference):
                step.renew()
        info = None if program is None else foreign.failure_of(program.foreign)
        if info is None:
            whose = f"context {queue.context.number}, submission {sequence}"
            info = self._errors.note(error, whose, "submission")
            self._send(link.InternalError(info=info))
        submission = queue.taken(sequence)
        if queue.closed:
            queue.reset()
        elif queue.completed >= sequence:
            queue.reset()
            queue.repeat_end()
        elif submission is None:
            self.abandon(queue, info)
        else:
            self._counters.submissions += 1
            self._report(queue, info)
            queue.finish(submission, info)
            queue.reset()
        self._queues.restore(queue)
        # uncharged time as well, or it would be served first again and again
        self._scheduler.charge(queue, time.monotonic_ns() - min(start, queue.ran_ns))

    def _report(self, queue: EngineQueue, info: ErrorInfo) -> None:
        """Count a failure, and report it to the supervisor unless the queue was already lost."""
        self._counters.count_fault()
        if queue.lost is None:
            self._send(
                link.SubmissionFailed(
                    context=queue.context.number,
                    queue=queue.handle,
                    sequence=(queue.completed + 1) % 2**64,
                    info=info.shortened(),
                )
            )
