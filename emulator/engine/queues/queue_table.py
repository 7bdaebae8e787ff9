"""The queues of a device, by state: awake (polled), asleep, or waiting.

A queue is *awake* while the engine polls its ring, and asleep otherwise: then the driver has to ring the
doorbell. One whose submission waits is *aside*: blocked, or paced (`waits`).

Work on many queues is done in portions, between which others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import Final

from softnpu.emulator.common import linux
from softnpu.emulator.engine.commands.steps import EventWait
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.queues.chores import PART, Chore, ChoreTable
from softnpu.emulator.engine.queues.context import EngineContext
from softnpu.emulator.engine.queues.polled import LOOKS, Polled
from softnpu.emulator.engine.queues.queue import EngineQueue, Place
from softnpu.emulator.engine.queues.waits import Waits
from softnpu.emulator.engine.share import Share

_FEW = 8  # polling this many awake queues costs less than deciding about them
MANY: Final = 64
"""Queues checked at once; of more, only some are."""
_IDLE_CHECK_NS = 5_000_000
_MOST_OVERDUE = 16  # handled at once
LOOK_NS: Final = 20_000
"""Time between two scans of all queues with work, per queue. A scan of 256 takes 0.1 ms."""

_IDLE_NS = 20_000_000
_ASLEEP, _AWAKE, _BLOCKED, _PACED = Place.ASLEEP, Place.AWAKE, Place.BLOCKED, Place.PACED


class QueueTable:
    """All queues, by context and handle; each is in one place (`Place`)."""

    def __init__(self) -> None:
        self._by_context: dict[int, dict[int, EngineQueue]] = {}
        self._count = 0
        self.awake: Polled[EngineQueue] = Polled()
        self.chores = ChoreTable()
        self.aside = Waits()
        self._waiting = 0  # submissions of all queues, as last logged
        self._to_log: deque[EngineQueue] = deque()
        self._log_due_ns = 0
        self._maybe_idle: deque[EngineQueue] = deque()
        self._idle_check_due_ns = 0

    def __iter__(self) -> Iterator[EngineQueue]:
        for queues in list(self._by_context.values()):
            yield from list(queues.values())

    def get(self, context: int, handle: int) -> EngineQueue | None:
        """Return a queue; None if it was refused."""
        return self._by_context.get(context, {}).get(handle)

    def of(self, context: int) -> Collection[EngineQueue]:
        """Return the queues of a context."""
        return self._by_context.get(context, {}).values()

    def add(self, queue: EngineQueue) -> None:
        """Add a queue, which is neither awake nor asleep yet."""
        self._by_context.setdefault(queue.context.number, {})[queue.handle] = queue
        self._count += 1
        queue.context.level = max(queue.context.level, queue.level)

    def drop(self, queue: EngineQueue) -> None:
        """Drop a queue; its running submission ends early."""
        queue.closed = True
        queue.drop_prepared()  # a cycle that would keep memory mapped
        self._by_context[queue.context.number].pop(queue.handle)
        self._count -= 1
        queue.context.users.drop(queue.handle)
        self._leave(queue)
        queue.share.decoding.discard(queue)
        self._waiting -= max(0, queue.logged_waiting)
        queue.logged_waiting = -1
        # lookups would keep its memory mapped
        self._to_log.clear()
        self._maybe_idle.clear()

    def drop_context(self, context: int) -> None:
        self._by_context.pop(context, None)

    def set_background(self, queue: EngineQueue, background: bool) -> None:
        """Set the level of a queue."""
        was_awake = queue in self.awake
        self.awake.discard(queue)
        queue.set_background(background)
        if was_awake:
            self.awake.add(queue)

    def drop_lookups(self, context: EngineContext, handles: Collection[int] | None = None) -> None:
        """Make the queues of a context forget lookups of these handles, or of all."""
        queues = self._by_context.get(context.number, {})
        taken = [context.users.take(handle) for handle in handles or ()]
        if handles is None or None in taken:
            for queue in queues.values():
                queue.drop_lookups()
            return
        for user in set(chain.from_iterable(users for users in taken if users)):
            if user in queues:
                queues[user].drop_lookups(handles)

    def runnable(self, level: int) -> list[EngineQueue]:
        """Return awake queues of a level that have work, only some per session."""
        groups = (group for group in self.awake.groups.values() if group.level == level)
        looks = chain.from_iterable(islice(group.queues, LOOKS) for group in groups)
        return [queue for queue in looks if queue.pending()]

    def log_waiting(self, now_ns: int) -> int:
        """Log each queue's number of unfinished submissions for monitors; return the sum.

        Of many queues it checks some at a time, at intervals.
        """
        if now_ns >= self._log_due_ns:
            if not self._to_log:
                self._to_log.extend((*self.awake, *self.aside.blocked, *self.aside.paced))
            part = _take(self._to_log)
            for queue in part:
                self._log_waiting(queue)
            self._log_due_ns = now_ns + (len(part) * LOOK_NS if self._to_log or self.aside else 0)
        return self._waiting

    def adopt_waiting(self, queue: EngineQueue, logged: int) -> None:
        """Take over a queue's count of waiting submissions logged by the C++ part, an unsigned word."""
        logged = logged if logged < 1 << 63 else -1
        self._waiting += max(0, logged) - max(0, queue.logged_waiting)
        queue.logged_waiting = logged

    def _log_waiting(self, queue: EngineQueue) -> None:
        self._waiting -= max(0, queue.logged_waiting)
        self._waiting += queue.log_waiting()

    # ------------------------------------------------------------ awake and asleep

    def wake(self, queue: EngineQueue) -> None:
        """Poll the ring of a queue from now on, unless it is closed: by a message, while it was looked at."""
        self._leave(queue)
        if queue.closed:
            return
        queue.set_asleep(False)
        queue.place = _AWAKE
        self.awake.add(queue)

    def restore(self, queue: EngineQueue) -> None:
        """Poll the ring of a queue whose submission has ended, wherever it stands, unless it is closed."""
        if queue.closed or queue.place is not _AWAKE or queue not in self.awake:
            self.wake(queue)

    def asleep_with_work(self, context: int) -> list[EngineQueue]:
        """Return the sleeping queues of a context that have work."""
        return [queue for queue in self.of(context) if queue.place is _ASLEEP and queue.pending()]

    def answer_doorbell(self, context: EngineContext, *, at_once: bool = True) -> None:
        """Check the queues of a context whose doorbell was rung; many of them in its session's turns."""
        queues = self.of(context.number)
        if at_once and len(queues) <= PART and not context.looking:
            for queue in list(queues):
                self._look_at(queue)
            return
        context.rung = True
        if not context.looking:
            context.looking = True
            self.chores.add(context.share, context.level, self._look(context))

    def _look(self, context: EngineContext) -> Chore:
        """Check every queue of a context; again if its doorbell is rung meanwhile."""
        while context.rung:
            context.rung = False
            queues = list(self.of(context.number))
            for start in range(0, len(queues), PART):
                for queue in queues[start : start + PART]:
                    self._look_at(queue)
                yield None
        context.looking = False

    def _look_at(self, queue: EngineQueue) -> None:
        """Wake a queue that has new work or can continue."""
        if queue.closed:
            return
        place = queue.place
        if place is _ASLEEP:
            can_run = queue.pending()
        elif place is _BLOCKED:
            can_run = _goes_on(queue)
        else:
            can_run = place is _PACED and queue.is_cancelled()
        if can_run and not queue.closed:  # by a message that was read to find its fence
            self.wake(queue)

    def put_to_sleep_some(self) -> None:
        """Stop polling queues without work, a limited number per call."""
        queues = list(islice(self.awake, MANY))
        for queue in queues:
            self.awake.discard(queue)
        self.put_to_sleep(queues)

    def put_idle_to_sleep(self, now_ns: int) -> None:
        """Stop polling queues idle for a while: for an engine that is never idle."""
        if len(self.awake) <= _FEW or now_ns < self._idle_check_due_ns:
            return
        if not self._maybe_idle:
            self._maybe_idle.extend(self.awake)
        part = _take(self._maybe_idle)
        parts = 1 + len(self.awake) // MANY
        self._idle_check_due_ns = now_ns + max(_IDLE_CHECK_NS // parts, MANY * LOOK_NS)
        idle = [
            queue
            for queue in part
            if now_ns - queue.ran_ns > _IDLE_NS
            and queue.place is _AWAKE
            and not (queue.turbo or queue.pending())
            and not queue.has_begun  # it may run, and its client may have lowered its tail
        ]
        for queue in idle:
            self.awake.discard(queue)
        if idle:
            self.put_to_sleep(idle)

    def put_to_sleep(self, queues: list[EngineQueue]) -> None:
        """Put queues to sleep that are not in `awake`; those that receive work meanwhile wake again."""
        for queue in queues:
            self._log_waiting(queue)
            queue.place = _ASLEEP
            queue.set_asleep(True)
        # a driver stores its tail and then reads `asleep`; we store `asleep` and then read its tail: with a
        # fence on both sides at least one of us sees the other
        linux.memory_fence()
        for queue in queues:
            if queue.pending() and not queue.closed:
                self.wake(queue)

    def sleepers(self) -> list[EngineQueue]:
        """Return sleeping queues for the C++ part to wake; none if there are many queues."""
        if self._count > MANY:
            return []
        return [queue for queue in self if queue.place is _ASLEEP and queue.is_between]

    def adopt(self, queue: EngineQueue, *, awake: bool) -> None:
        """Record whether the C++ part has left this queue awake or asleep."""
        if awake and queue.place is _ASLEEP:
            queue.place = _AWAKE
            self.awake.add(queue)
        elif not awake:
            self.awake.discard(queue)
            queue.place = _ASLEEP

    # ------------------------------------------------------------ aside

    def block(
        self, queue: EngineQueue, deadline_ns: int, wait: EventWait | None = None, *, loading: bool = False
    ) -> None:
        """Set a queue aside until its wait ends; a wait keeps its first deadline, 0: none."""
        self._leave(queue)
        self.aside.block(queue, deadline_ns, wait, loading)
        self._log_waiting(queue)

    def retry(self, queue: EngineQueue) -> None:
        """Let a waiting submission check its condition again."""
        if queue.place is _BLOCKED or queue.place is _PACED:
            self.wake(queue)

    def wake_signalled(self, event: Range) -> None:
        """Wake the queues that wait for this event; many of them in their sessions' turns."""
        waiting = self.aside.waiting_for(event)
        for queue in waiting[:MANY]:
            self.wake(queue)
        lines: dict[tuple[Share, int], list[EngineQueue]] = {}
        for queue in waiting[MANY:]:
            lines.setdefault((queue.share, queue.level), []).append(queue)
        for (share, level), queues in lines.items():
            self.chores.add(share, level, self._wake_those(queues, event))

    def _wake_those(self, queues: list[EngineQueue], event: Range) -> Chore:
        for start in range(0, len(queues), PART):
            for queue in queues[start : start + PART]:
                if queue.place is _BLOCKED and queue.wait is not None and queue.wait.at == event:
                    self.wake(queue)
            yield None

    def retry_loads(self) -> None:
        """Let every queue that waits for an image check it again."""
        for queue in self.aside.loading():
            self.wake(queue)

    def take_overdue(self, now_ns: int) -> list[EngineQueue]:
        """Put some overdue blocked queues to sleep, and return them.

        A queue stays while another one of its session waits for its turn: that may be what would signal. One
        that can go on does: its doorbell was rung, and has not been answered yet.
        """
        late = self.aside.deadlines.take(now_ns, _MOST_OVERDUE)
        busy: dict[Share, bool] = {}
        overdue: list[EngineQueue] = []
        for queue in late:
            if _goes_on(queue):
                self.wake(queue)
                continue
            share = queue.share
            if share not in busy:
                busy[share] = self.awake.has_work(share)
            if busy[share]:  # avoids rechecking thousands that stay
                self.aside.deadlines.set(queue, now_ns + len(self.aside) * LOOK_NS)
            else:
                self._leave(queue)
                overdue.append(queue)
        return overdue

    def pace(self, queue: EngineQueue) -> None:
        """Set a queue aside until the modelled time of its submission is over."""
        self._leave(queue)
        self.aside.pace(queue)
        self._log_waiting(queue)

    def wake_paced(self, now_ns: int) -> None:
        """Wake the queues whose modelled time is over."""
        for queue in self.aside.ends.take(now_ns, len(self.aside.paced)):
            self.wake(queue)

    def _leave(self, queue: EngineQueue) -> None:
        """Remove a queue from its place; it is asleep then."""
        place, queue.place = queue.place, _ASLEEP
        if place is _AWAKE:
            self.awake.discard(queue)
        elif place is not _ASLEEP:
            self.aside.leave(queue)


def _goes_on(queue: EngineQueue) -> bool:
    """Whether what a blocked queue waits for has happened, or is not waited for any more."""
    return (queue.wait is not None and queue.wait.event.signalled) or queue.is_cancelled()


def _take(queues: deque[EngineQueue]) -> list[EngineQueue]:
    """Remove the first ones, a limited number."""
    return [queues.popleft() for _ in range(min(MANY, len(queues)))]
