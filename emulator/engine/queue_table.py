"""The queues of a device: which rings the engine polls, which sleep, which wait for an event.

A queue is *awake* while the engine polls its ring, and asleep otherwise: then the driver has to ring the
doorbell. One whose submission waits is *aside*: blocked, or paced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from softnpu.emulator.common import linux
from softnpu.emulator.engine.queue import EngineQueue, Place
from softnpu.emulator.engine.scheduler import Share

_FEW = 8  # polling so many awake queues costs less than deciding about them
_IDLE_CHECK_NS = 5_000_000
LOOK_NS = 20_000
"""Between two looks at all queues with work, for each. With 256 a look takes a tenth of a millisecond."""

_IDLE_NS = 20_000_000
_ASLEEP, _AWAKE, _BLOCKED, _PACED = Place.ASLEEP, Place.AWAKE, Place.BLOCKED, Place.PACED
_Queues = dict[EngineQueue, None]  # in their order, and quick to leave


class QueueTable:
    """All queues, by context and handle; each is in one place (`Place`)."""

    def __init__(self) -> None:
        self._by_context: dict[int, dict[int, EngineQueue]] = {}
        self.awake: list[EngineQueue] = []
        self._blocked: dict[int, _Queues] = {}  # by context, none of them empty
        self._paced: _Queues = {}
        self._deadline_ns = 0  # no wait of a blocked queue ends before; 0: none ends at all
        self._aside_waiting = 0  # submissions of the queues aside, as they were noted last
        self._aside_due_ns = 0
        self._idle_check_due_ns = 0

    def __iter__(self) -> Iterator[EngineQueue]:
        for queues in list(self._by_context.values()):
            yield from list(queues.values())

    def get(self, context: int, handle: int) -> EngineQueue:
        return self._by_context[context][handle]

    def of(self, context: int) -> Collection[EngineQueue]:
        """Return the queues of a context."""
        return self._by_context.get(context, {}).values()

    def add(self, queue: EngineQueue) -> None:
        """Add a queue, which is neither awake nor asleep yet."""
        self._by_context.setdefault(queue.context.number, {})[queue.handle] = queue

    def drop(self, queue: EngineQueue) -> None:
        """Drop a queue; what of it runs ends early."""
        queue.closed, queue.known = True, None  # which refers to it: it would keep memory mapped
        self._by_context[queue.context.number].pop(queue.handle)
        self._leave(queue)

    def drop_context(self, context: int) -> None:
        self._by_context.pop(context, None)

    def drop_lookups(self, context: int, handles: Collection[int] | None = None) -> None:
        """Have the queues of a context forget what they have looked up of these handles, or of all."""
        for queue in self.of(context):
            queue.drop_lookups(handles)

    def runnable(self, level: int) -> list[EngineQueue]:
        """Return the awake queues of a level that have work."""
        return [queue for queue in self.awake if queue.level == level and queue.pending()]

    def decoding(self, share: Share) -> int:
        """Count the queues of a session whose next command buffer is half decoded."""
        return sum(queue.decoding is not None for queue in self if queue.share is share)

    def note_waiting(self, now_ns: int) -> int:
        """Note for monitors how many submissions of each queue have not ended; return their sum.

        At those aside it looks now and then: there may be thousands, at which nothing happens.
        """
        if now_ns >= self._aside_due_ns and self.has_aside:
            aside = [*self._all_blocked(), *self._paced]
            self._aside_waiting = sum(queue.note_waiting() for queue in aside)
            self._aside_due_ns = now_ns + len(aside) * LOOK_NS
        return self._aside_waiting + sum(queue.note_waiting() for queue in self.awake)

    # ------------------------------------------------------------ awake and asleep

    def wake(self, queue: EngineQueue) -> None:
        """Poll the ring of a queue from now on."""
        self._leave(queue)
        queue.set_asleep(False)
        queue.place = _AWAKE
        self.awake.append(queue)

    def restore(self, queue: EngineQueue) -> None:
        """Poll the ring of a queue whose submission has ended, wherever it stands, unless it is closed."""
        if queue.closed:
            self._leave(queue)
        elif queue.place is not _AWAKE or queue not in self.awake:
            self.wake(queue)

    def asleep_with_work(self, context: int) -> list[EngineQueue]:
        """Return the queues of a context that have work and for which only the doorbell is missing."""
        return [queue for queue in self.of(context) if queue.place is _ASLEEP and queue.pending()]

    def put_all_to_sleep(self) -> None:
        """Stop polling every queue without work."""
        queues, self.awake = self.awake, []
        self.put_to_sleep(queues)

    def put_idle_to_sleep(self, now_ns: int) -> None:
        """Stop polling queues that have had no work for a while: for an engine that is never idle."""
        if len(self.awake) <= _FEW or now_ns < self._idle_check_due_ns:
            return
        self._idle_check_due_ns = now_ns + max(_IDLE_CHECK_NS, len(self.awake) * LOOK_NS)
        idle = [
            queue
            for queue in self.awake
            if now_ns - queue.ran_ns > _IDLE_NS
            and not (queue.turbo or queue.pending())
            and not queue.has_begun  # it may run, and its client may have taken its tail back
        ]
        if idle:
            ids = set(map(id, idle))
            self.awake = [queue for queue in self.awake if id(queue) not in ids]
            self.put_to_sleep(idle)

    def put_to_sleep(self, queues: list[EngineQueue]) -> None:
        """Put queues to sleep that are not in `awake`; those that have work meanwhile wake again."""
        for queue in queues:
            queue.note_waiting()
            queue.place = _ASLEEP
            queue.set_asleep(True)
        # a driver stores its tail and then reads `asleep`; we store `asleep` and then read its tail: with a
        # fence on both sides at least one of us sees the other
        linux.memory_fence()
        for queue in queues:
            if queue.pending() and not queue.closed:
                self.wake(queue)

    def adopt_awake(self, awake: list[EngineQueue], asleep: Iterable[EngineQueue]) -> None:
        """Take over what the part in C++ has left: it has put queues to sleep and has woken some."""
        self.awake = awake
        for queue in asleep:
            queue.place = _ASLEEP

    # ------------------------------------------------------------ aside

    @property
    def has_blocked(self) -> bool:
        """Whether a submission waits for an event or an image."""
        return bool(self._blocked)

    @property
    def has_paced(self) -> bool:
        """Whether the modelled time of a submission is not over."""
        return bool(self._paced)

    @property
    def has_aside(self) -> bool:
        return bool(self._blocked or self._paced)

    def block(self, queue: EngineQueue, deadline_ns: int) -> None:
        """Set a queue aside until something is signalled; the first deadline of a wait stays, 0: none."""
        self._leave(queue)
        queue.place = _BLOCKED
        self._blocked.setdefault(queue.context.number, {})[queue] = None
        self._aside_waiting += queue.note_waiting()
        queue.deadline_ns = due_ns = queue.deadline_ns or deadline_ns
        if due_ns:
            self._deadline_ns = min(self._deadline_ns or due_ns, due_ns)

    def retry(self, queue: EngineQueue) -> None:
        """Let a submission that waits for something look at it again."""
        if queue.place is _BLOCKED or queue.place is _PACED:
            self.wake(queue)

    def retry_blocked(self, context: int | None = None) -> None:
        """Let every queue of a context that waits for an event check it again; or of all contexts."""
        for queues in [self._blocked.get(context, {})] if context is not None else [*self._blocked.values()]:
            for queue in list(queues):
                self.wake(queue)

    def take_overdue(self, now_ns: int) -> list[EngineQueue]:
        """Put the blocked queues to sleep whose deadline has passed, and return them.

        A queue stays while another one of its session waits for its turn: that may be what would signal.
        """
        if not 0 < self._deadline_ns <= now_ns:
            return []
        waits = [queue for queue in self._all_blocked() if queue.deadline_ns]
        late = [queue for queue in waits if queue.deadline_ns <= now_ns]
        shares = {id(queue.share) for queue in self.awake if queue.pending()} if late else set()
        overdue = [queue for queue in late if id(queue.share) not in shares]
        for queue in overdue:
            self._leave(queue)
        next_ns = min((queue.deadline_ns for queue in waits if queue.place is _BLOCKED), default=0)
        if 0 < next_ns <= now_ns and len(waits) > _FEW:  # thousands that stay are not looked at all the time
            next_ns = now_ns + len(waits) * LOOK_NS
        self._deadline_ns = next_ns
        return overdue

    def next_deadline_ns(self) -> int | None:
        """Return when to call `take_overdue` at the latest."""
        return self._deadline_ns or None

    def pace(self, queue: EngineQueue) -> None:
        """Set a queue aside until the modelled time of its submission is over."""
        self._leave(queue)
        queue.place = _PACED
        self._paced[queue] = None
        self._aside_waiting += queue.note_waiting()

    def wake_paced(self, now_ns: int) -> None:
        """Wake the queues whose modelled time is over."""
        for queue in [queue for queue in self._paced if queue.resume_ns <= now_ns]:
            self.wake(queue)

    def wake_cancelled(self, context: int) -> None:
        """Wake the paced queues of a context whose submission was cancelled."""
        for queue in self.of(context):
            if queue.place is _PACED and queue.is_cancelled():
                self.wake(queue)

    def next_paced_ns(self) -> int | None:
        """Return when the next of them is due, on the host's clock."""
        return min((queue.resume_ns for queue in self._paced), default=None)

    def _all_blocked(self) -> Iterator[EngineQueue]:
        for queues in self._blocked.values():
            yield from queues

    def _leave(self, queue: EngineQueue) -> None:
        """Take a queue out of where it is; it is asleep then."""
        place, queue.place = queue.place, _ASLEEP
        if place is _AWAKE:
            if queue in self.awake:
                self.awake.remove(queue)
        elif place is not _ASLEEP:
            self._aside_waiting -= queue.noted_waiting
            if place is _PACED:
                del self._paced[queue]
                return
            blocked = self._blocked[queue.context.number]
            del blocked[queue]
            if not blocked:
                del self._blocked[queue.context.number]
                self._deadline_ns = self._deadline_ns if self._blocked else 0
