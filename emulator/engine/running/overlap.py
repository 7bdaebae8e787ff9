"""Start inferences before their turn, so that all streams of an image have work.

An image compiled for throughput splits the threads into streams, each of which runs one inference at a time.
While the engine waits for one inference, it starts the next ones concurrently. They end in the order in which
they started, and clients see them one after the other.

A submission starts early only if no client can tell: it is a single inference, no earlier submission still
running writes its memory, and it writes nothing that they use.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from softnpu.emulator.engine import workers
from softnpu.emulator.engine.commands.concurrent import ConcurrentRun
from softnpu.emulator.engine.commands.inference import Inference
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.queues.queue import EngineQueue, Place
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino.copies import CopyMaker

_AFTER_RESET_NS = 5_000_000_000


class EarlyInference(NamedTuple):
    """An inference running before its turn: submission `sequence` of the queue."""

    queue: EngineQueue
    sequence: int
    inference: Inference
    run: ConcurrentRun


class Overlap:
    """The inferences of one engine that have started early.

    For five seconds after an engine reset nothing starts early: a submission that kills engines then runs
    alone, and no other is blamed.
    """

    def __init__(self, queues: QueueTable, counters: Counters, after_reset: bool) -> None:
        self._queues = queues
        self._counters = counters
        self.copies = CopyMaker(workers.needed)
        self._early: list[EarlyInference] = []
        self._streams = 1  # of what runs; 1 if it uses none
        self._not_before_ns = time.monotonic_ns() + _AFTER_RESET_NS if after_reset else 0

    @property
    def has_early(self) -> bool:
        """Whether an inference runs before its turn."""
        return bool(self._early)

    def beside(self, queue: EngineQueue) -> list[EngineQueue]:
        """Return the queues whose inferences have a stream beside the one of this queue, and share its time.

        Those that still wait for a stream pay nothing: where streams end together, every second inference
        would pay twice.
        """
        running = self._early[: self._streams - 1]
        return [early.queue for early in running if early.queue.level == queue.level]

    def first_due(self, picked: EngineQueue) -> EngineQueue:
        """Return the queue whose turn is next: what has started first ends first, within its level.

        Otherwise inferences that have ended would wait for others, and streams for both.
        """
        while self._early:
            early = self._early[0]
            queue = early.queue
            if queue.level != picked.level or queue.place is not Place.AWAKE:
                break
            if queue.pending():
                return queue
            early.run.cancel_early()  # the client has taken it back
            del self._early[0]
        return picked

    def begin(self, queue: EngineQueue, inference: Inference | None) -> None:
        """Begin the turn of the queue's next submission, a single inference or something else.

        Continue what has started early, and start others beside it.
        """
        self._streams = 1
        if self._early:
            if self._early[0].queue is not queue:
                self._give_way(inference)
            self._adopt(queue, inference)
        if inference is None:
            return
        run = inference.concurrent()
        if run is not None:
            self._start_more(queue, run)

    def _give_way(self, inference: Inference | None) -> None:
        """Cancel what has started before something that overtakes it, and may write what it uses."""
        run = None if inference is None else inference.concurrent()
        kept = []
        for early in self._early:
            if run is not None and not run.conflicts(early.run):
                kept.append(early)
            else:
                early.run.cancel_early()
        self._early = kept

    def _adopt(self, queue: EngineQueue, inference: Inference | None) -> None:
        sequence = queue.completed + 1
        remaining = []
        for early in self._early:
            is_due = early.queue is queue and early.sequence == sequence
            if is_due or early.inference is inference:
                if not is_due or early.inference is not inference:
                    early.run.cancel_early()  # the client has overwritten or resubmitted its commands
            else:
                remaining.append(early)
        self._early = remaining

    def poll(self, queue: EngineQueue, inference: Inference) -> None:
        """Start the next inferences while this one, of the queue's next submission, runs beside others."""
        run = inference.concurrent()
        if run is not None:
            self._start_more(queue, run)

    def _start_more(self, queue: EngineQueue, run: ConcurrentRun) -> None:
        # one more than streams, so that no stream idles between two
        self._streams = run.streams
        room = run.streams - len(self._early)
        while room > 0 and time.monotonic_ns() >= self._not_before_ns:
            candidate = self._next_candidate(queue)
            running = [run, *(early.run for early in self._early)]
            # one that has to wait for them is not overtaken either
            if candidate is None or any(candidate.run.conflicts(other) for other in running):
                break
            try:
                candidate.run.start_early()
            except (RuntimeError, MemoryError):
                break  # not the running one's fault; it is reported in its own turn
            self._early.append(candidate)
            self._counters.count_overlapped()
            room -= 1
        run.poll_often(room > 0)

    def cancel(self, queue: EngineQueue) -> None:
        """Cancel the early inferences of this queue, so that they no longer write memory."""
        if not self._early:
            return
        for early in self._early:
            if early.queue is queue:
                early.run.cancel_early()
        self._early = [early for early in self._early if early.queue is not queue]

    def _next_candidate(self, running: EngineQueue) -> EarlyInference | None:
        """Return what starts next: of other queues in the order of turns, then more of this one.

        What cannot start early is not overtaken, or a flood of inferences would keep it from its turn.
        """
        others = [queue for queue in self._queues.runnable(running.level) if queue is not running]
        others.sort(key=lambda queue: (queue.share.spent_ns[queue.level], queue.ran_ns))
        for queue in (*others, running):
            if queue.closed:
                continue
            early = sum(1 for each in self._early if each.queue is queue)
            has_begun = queue is not running and (queue.program or queue.decoding or queue.step)
            candidate = None
            if not has_begun and queue.lost is None:
                candidate = self._candidate(queue, early + (queue is running))
            if candidate is not None or not early:
                return candidate
        return None

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
        run = None if inference is None else inference.concurrent()
        if inference is None or run is None:
            return None
        return EarlyInference(queue, submission.sequence, inference, run)
