"""Draining objects: released by clients, but charged to them until the engine has let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from softnpu.emulator.supervisor.engines.queue_states import QueueStates
from softnpu.emulator.supervisor.state.objects import Context, Queue

OnDropped = Callable[[], None]


class Draining:
    """Contexts, queues and large or sparse segments on their way out of one engine.

    Each is added once and finished once: by the report of the engine, or by its end.
    """

    def __init__(self, states: QueueStates) -> None:
        self._states = states
        self._contexts: dict[int, tuple[Context, list[Queue], OnDropped]] = {}
        self._queues: dict[tuple[int, int], tuple[Queue, OnDropped]] = {}
        self._segments: dict[tuple[int, int], OnDropped] = {}

    def __bool__(self) -> bool:
        return bool(self._contexts or self._queues or self._segments)

    @property
    def is_unmapping(self) -> bool:
        """Whether the engine may still map memory that was freed."""
        return bool(self._segments or self._contexts)

    def queues(self) -> Iterator[Queue]:
        """The queues whose last submission may still run."""
        for _, queues, _ in self._contexts.values():
            yield from queues
        for queue, _ in self._queues.values():
            yield queue

    def has(self, queue: Queue) -> bool:
        """Whether this queue was given back."""
        number = queue.context.number
        return number in self._contexts or (number, queue.handle) in self._queues

    def add_context(self, context: Context, on_dropped: OnDropped) -> None:
        queues = [*context.queues.values()]
        self._contexts[context.number] = (context, queues, on_dropped)

    def add_queue(self, queue: Queue, on_dropped: OnDropped) -> None:
        self._queues[queue.context.number, queue.handle] = (queue, on_dropped)

    def add_segment(self, context: Context, segment: int, on_unmapped: OnDropped) -> None:
        self._segments[context.number, segment] = on_unmapped

    def finish_context(self, number: int) -> None:
        entry = self._contexts.pop(number, None)
        if entry is not None:
            context, queues, on_dropped = entry
            context.give_back()
            for key in [key for key in self._segments if key[0] == number]:
                self.finish_segment(*key)
            for queue in queues:
                self._free_state(context, queue.state)
            on_dropped()

    def finish_queue(self, context: int, queue: int) -> None:
        entry = self._queues.pop((context, queue), None)
        if entry is not None:
            dropped, on_dropped = entry
            self._free_state(dropped.context, dropped.state)
            on_dropped()

    def finish_segment(self, context: int, segment: int) -> None:
        on_unmapped = self._segments.pop((context, segment), None)
        if on_unmapped is not None:
            on_unmapped()

    def finish_all(self) -> None:
        """Finish everything: without an engine nothing is in use."""
        for key in list(self._queues):
            self.finish_queue(*key)
        for number in list(self._contexts):
            self.finish_context(number)
        for key in list(self._segments):
            self.finish_segment(*key)

    def _free_state(self, context: Context, state: int) -> None:
        """Free the record of a queue, to which no engine writes any longer."""
        context.usage.end(context.device, state)
        self._states.free(state)
