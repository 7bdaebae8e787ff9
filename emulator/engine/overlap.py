"""Inferences that begin before their turn, so that all streams of an image have work.

An image that was compiled for throughput splits the threads into streams, each of which does one inference at
a time. While one inference is waited for, those that come next are started beside it. Their turns come in the
same order as ever, and only then does anybody learn of them: what is seen is one submission after the other.

A submission begins early only if nothing can tell: it is one inference and nothing else, its memory is not
written by those before it that still run, and it writes nothing that they use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from softnpu.emulator.interface.result import Refused

if TYPE_CHECKING:
    from softnpu.emulator.engine.engine import Engine
    from softnpu.emulator.engine.inference import Inference
    from softnpu.emulator.engine.queue import EngineQueue

_CAREFUL_NS = 5_000_000_000


class Begun(NamedTuple):
    """An inference that runs before its turn: submission `sequence` of the queue."""

    queue: EngineQueue
    sequence: int
    inference: Inference


class Overlap:
    """What has begun early on one engine.

    An engine that follows a dead one begins nothing early for five seconds: what has killed the other runs
    alone then, and nobody else is blamed.
    """

    def __init__(self, engine: Engine, after_reset: bool) -> None:
        self._engine = engine
        self._begun: list[Begun] = []
        self._not_before_ns = time.monotonic_ns() + _CAREFUL_NS if after_reset else 0

    def claim(self, queue: EngineQueue, inference: Inference | None) -> None:
        """The turn of the queue's next submission has come: it goes on with what was begun of it."""
        if not self._begun:
            return
        sequence = queue.completed + 1
        kept = []
        for begun in self._begun:
            its = begun.queue is queue and begun.sequence == sequence
            if its or begun.inference is inference:
                if not its or begun.inference is not inference:
                    begun.inference.call_off()  # the client has overwritten, or used twice, its commands
            else:
                kept.append(begun)
        self._begun = kept

    def top_up(self, queue: EngineQueue, inference: Inference) -> None:
        """Begins what comes next while this inference, of the next submission of the queue, runs."""
        # one more than there are streams, so that none of them rests between two
        room = inference.streams - len(self._begun)
        while room > 0 and time.monotonic_ns() >= self._not_before_ns:
            for begun in self._candidates(queue):
                running = [inference, *(other.inference for other in self._begun)]
                if not any(begun.inference.disturbs(other) for other in running):
                    break
            else:
                return
            try:
                begun.inference.begin()
            except RuntimeError:
                return  # whatever it is, it is not the fault of the one that runs: its turn will tell
            self._begun.append(begun)
            self._engine.counters.count_overlapped()
            room -= 1

    def settle(self, queue: EngineQueue) -> None:
        """Nothing of this queue that was begun writes memory any more."""
        if not self._begun:
            return
        for begun in self._begun:
            if begun.queue is queue:
                begun.inference.call_off()
        self._begun = [begun for begun in self._begun if begun.queue is not queue]

    def _candidates(self, running: EngineQueue) -> Iterator[Begun]:
        """What may come next, in the order in which turns come: others first, then more of this queue."""
        others = [queue for queue in self._engine.hot(running.level) if queue is not running]
        others.sort(key=lambda queue: (queue.share.spent_ns[queue.level], queue.ran_ns))
        for queue in (*others, running):
            if queue.closed or queue.lost is not None:
                continue
            if queue is not running and (queue.blocked or queue.decoding or queue.step):
                continue  # its next submission has begun long ago
            before = sum(1 for begun in self._begun if begun.queue is queue) + (queue is running)
            candidate = self._candidate(queue, before)
            if candidate is not None:
                yield candidate

    def _candidate(self, queue: EngineQueue, before: int) -> Begun | None:
        """The submission behind `before` others, if it is known and one inference and nothing else."""
        try:
            submission = queue.peek(before)
            if submission is None or submission.sequence == queue.condemned:
                return None
            data = queue.command_buffer(submission)
        except Refused:
            return None  # its turn will tell what is wrong with it
        program = queue.context.program(submission.buffer, submission.offset, data)
        inference = None if program is None else program.inference
        if inference is None or not inference.overlaps:
            return None
        return Begun(queue, submission.sequence, inference)
