"""What follows when a submission cost everybody an engine: its process may be slowed, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.ban_policy import WINDOW_S, BanPolicy
from softnpu.emulator.supervisor.objects import Context, Queue
from softnpu.emulator.supervisor.reactor import Reactor

log = logging.getLogger(__name__)


class Penalties:
    """The penalties on one device. `post` tells its engine, `count` adds one to a word of its status."""

    def __init__(
        self,
        contexts: Mapping[int, Context],
        offenders: BanPolicy,
        reactor: Reactor,
        post: Callable[[link.EngineCommand], None],
        count: Callable[[StatusWord], None],
    ) -> None:
        self._contexts = contexts
        self._offenders = offenders
        self._reactor = reactor
        self._post = post
        self._count = count

    def blame(self, queue: Queue, found: str) -> None:
        """A submission of this queue cost an engine, or a command that had to be ended."""
        self._blame(queue.context.owner, f"queue {queue.handle:#x}", found)

    def blame_loader(self, owner: str, found: str) -> None:
        """A graph that this process wanted loaded cost two engines."""
        self._blame(owner, "graph", found)

    def _blame(self, owner: str, object: str, found: str) -> None:
        times = self._offenders.note(owner)
        self._count(StatusWord.OFFENCES)
        log.error("%s, %s: %s; %d times within %g s", object, owner, found, times, WINDOW_S)
        if not self._offenders.slowed(owner):
            return
        for each in self._queues_of(owner):
            self.announce_level(each)
            if self._offenders.refused(owner) and each.lost is None:
                self.lose(each, self._offenders.info(owner))
        self._reactor.after(WINDOW_S + 1.0, lambda: self._forgive(owner))

    def note_failure(self, report: link.SubmissionFailed) -> None:
        """A submission failed; a lost queue stays lost, whatever a client writes into its ring."""
        if report.info.result != ZeResult.ERROR_DEVICE_LOST:
            return
        self._count(StatusWord.ABORTED)
        context = self._contexts.get(report.context)
        queue = context.queues.get(report.queue) if context is not None else None
        if queue is not None:
            queue.lost = report.info

    def in_background(self, queue: Queue) -> bool:
        """Whether the queue runs below all others: its client wants that, or its process is slowed."""
        return queue.background or self._offenders.slowed(queue.context.owner)

    def announce_level(self, queue: Queue) -> None:
        """Tells the engine whether the queue runs in the background now."""
        background = self.in_background(queue)
        self._post(
            link.QueueWorkload(context=queue.context.number, queue=queue.handle, background=background)
        )

    def lose(self, queue: Queue, info: ErrorInfo) -> None:
        """Nothing of this queue runs any more."""
        queue.lost = info
        self._post(link.QueueLose(context=queue.context.number, queue=queue.handle, info=info))

    def check(self, owner: str, object: str) -> None:
        """Refuses a process whose submissions have reset the device too often."""
        try:
            self._offenders.check(owner, object)
        except Refused:
            self._count(StatusWord.REFUSALS)
            raise

    def delay_s(self, owner: str) -> float:
        """How long a process waits for a new queue."""
        return self._offenders.delay_s(owner)

    def _forgive(self, owner: str) -> None:
        if not self._offenders.slowed(owner):
            for queue in self._queues_of(owner):
                self.announce_level(queue)

    def _queues_of(self, owner: str) -> list[Queue]:
        mine = [context for context in self._contexts.values() if context.owner == owner]
        return [queue for context in mine for queue in context.queues.values()]
