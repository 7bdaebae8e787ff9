"""The running submissions of one engine, including those of queues already released by clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from softnpu.emulator.supervisor.engines.draining import Draining
from softnpu.emulator.supervisor.engines.queue_states import QueueStates, Running
from softnpu.emulator.supervisor.state.objects import Context, Queue


class RunningSubmission(NamedTuple):
    """A running submission. `given_back`: its queue was released, and the engine knows.

    `left_to_others`: it was, and only other sessions use the engine.
    """

    queue: Queue
    running: Running
    given_back: bool
    left_to_others: bool = False


class RunningSubmissions:
    """Finds running submissions in the engine's queue records."""

    def __init__(self, contexts: Mapping[int, Context], draining: Draining, states: QueueStates) -> None:
        self._contexts = contexts
        self._draining = draining
        self._states = states

    def queues(self) -> Iterator[Queue]:
        """All queues whose submissions may run."""
        for context in self._contexts.values():
            yield from context.queues.values()
        yield from self._draining.queues()

    def first(self) -> RunningSubmission | None:
        """Return a running submission, if any."""
        for queue in self.queues():
            running = self._states.running(queue.state)
            if running is not None:
                given_back = self._draining.has(queue)
                return RunningSubmission(queue, running, given_back, given_back and self._is_left(queue))
        return None

    def _is_left(self, queue: Queue) -> bool:
        sessions = {context.session for context in self._contexts.values()}
        return bool(sessions) and queue.context.session not in sessions
