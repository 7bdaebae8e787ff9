"""Start inferences before their turn, so that all streams of an image have work.

An image compiled for throughput splits the threads into streams, each of which runs one inference at a time.
While the engine waits for one inference, it starts the next ones concurrently. They end in the order of their
turns, and clients see them one after the other.

A submission starts early only if no client can tell: it is a single inference, no earlier submission still
running writes its memory, and it writes nothing that they use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from softnpu.emulator.engine.commands.inference import Inference
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.interface.result import Refused

_AFTER_RESET_NS = 5_000_000_000


class EarlyInference(NamedTuple):
    """An inference running before its turn: submission `sequence` of the queue."""

    queue: EngineQueue
    sequence: int
    inference: Inference


class Overlap:
    """The inferences of one engine that have started early.

    For five seconds after an engine reset nothing starts early: a submission that kills engines then runs
    alone, and no other is blamed.
    """

    def __init__(self, queues: QueueTable, counters: Counters, after_reset: bool) -> None:
        self._queues = queues
        self._counters = counters
        self._early: list[EarlyInference] = []
        self._not_before_ns = time.monotonic_ns() + _AFTER_RESET_NS if after_reset else 0

    @property
    def has_early(self) -> bool:
        """Whether an inference runs before its turn."""
        return bool(self._early)

    def adopt(self, queue: EngineQueue, inference: Inference | None) -> None:
        """Begin the turn of the queue's next submission, continuing the inference that started early."""
        if not self._early:
            return
        sequence = queue.completed + 1
        remaining = []
        for early in self._early:
            is_due = early.queue is queue and early.sequence == sequence
            if is_due or early.inference is inference:
                if not is_due or early.inference is not inference:
                    early.inference.cancel_early()  # the client has overwritten or resubmitted its commands
            else:
                remaining.append(early)
        self._early = remaining

    def start_more(self, queue: EngineQueue, inference: Inference) -> None:
        """Start the next inferences while this one, of the queue's next submission, runs."""
        # one more than streams, so that no stream idles between two
        room = inference.streams - len(self._early)
        while room > 0 and time.monotonic_ns() >= self._not_before_ns:
            for candidate in self._candidates(queue):
                running = [inference, *(early.inference for early in self._early)]
                if not any(candidate.inference.conflicts(other) for other in running):
                    break
            else:
                return
            try:
                candidate.inference.start_early()
            except RuntimeError:
                return  # not the running one's fault; it is reported in its own turn
            self._early.append(candidate)
            self._counters.count_overlapped()
            room -= 1

    def cancel(self, queue: EngineQueue) -> None:
        """Cancel the early inferences of this queue, so that they no longer write memory."""
        if not self._early:
            return
        for early in self._early:
            if early.queue is queue:
                early.inference.cancel_early()
        self._early = [early for early in self._early if early.queue is not queue]

    def _candidates(self, running: EngineQueue) -> Iterator[EarlyInference]:
        """Yield candidates in the order of turns: other queues first, then more of this one."""
        others = [queue for queue in self._queues.runnable(running.level) if queue is not running]
        others.sort(key=lambda queue: (queue.share.spent_ns[queue.level], queue.ran_ns))
        for queue in (*others, running):
            if queue.closed or queue.lost is not None:
                continue
            if queue is not running and (queue.program or queue.decoding or queue.step):
                continue  # its next submission has begun in its turn
            behind = sum(1 for early in self._early if early.queue is queue) + (queue is running)
            candidate = self._candidate(queue, behind)
            if candidate is not None:
                yield candidate

    def _candidate(self, queue: EngineQueue, behind: int) -> EarlyInference | None:
        """Return the submission after `behind` others, if it is known and a single inference."""
        try:
            submission = queue.peek(behind)
            if submission is None or submission.sequence == queue.poisoned:
                return None
            data = queue.command_buffer(submission)
        except Refused:
            return None  # the error is reported in its turn
        program = queue.context.programs.get(submission.buffer, submission.offset, data)
        inference = None if program is None else program.inference
        if inference is None or not inference.overlaps:
            return None
        return EarlyInference(queue, submission.sequence, inference)
