"""The queues of a device: which rings the engine polls, which sleep, which wait for an event.

A queue is *awake* while the engine polls its ring, and asleep otherwise: then the driver has to ring the
doorbell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from softnpu.emulator.common import linux
from softnpu.emulator.engine.queue import EngineQueue
from softnpu.emulator.engine.scheduler import Share

_FEW = 8  # polling so many awake queues costs less than deciding about them
_IDLE_CHECK_NS = 5_000_000
LOOK_NS = 20_000
"""Between two looks at all awake queues, for each of them. With 256 a look takes a tenth of a millisecond."""

_IDLE_NS = 20_000_000


class QueueTable:
    """All queues, by context and handle; `awake`, `blocked` and `paced` are subsets."""

    def __init__(self) -> None:
        self._by_context: dict[int, dict[int, EngineQueue]] = {}
        self.awake: list[EngineQueue] = []
        self.blocked: list[EngineQueue] = []
        self.paced: list[EngineQueue] = []
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
        if queue in self.awake:
            self.awake.remove(queue)
        if queue in self.blocked:
            self.blocked.remove(queue)
        if queue in self.paced:
            self.paced.remove(queue)

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

    def note_waiting(self) -> int:
        """Note for monitors how many submissions of each queue have not ended; return their sum."""
        waiting = 0
        for queue in self.awake:
            waiting += queue.note_waiting()
        for queue in self.blocked:
            if queue not in self.awake:
                waiting += queue.note_waiting()
        for queue in self.paced:
            waiting += queue.note_waiting()
        return waiting

    # ------------------------------------------------------------ awake and asleep

    def wake(self, queue: EngineQueue) -> None:
        """Poll the ring of a queue from now on."""
        queue.set_asleep(False)
        self.awake.append(queue)

    def asleep_with_work(self, context: int) -> list[EngineQueue]:
        """Return the queues of a context that have work and are not polled."""
        return [queue for queue in self.of(context) if queue.pending() and queue not in self.awake]

    def put_all_to_sleep(self) -> None:
        """Stop polling every queue without work."""
        queues, self.awake = self.awake, []
        self.put_to_sleep(queues)

    def put_idle_to_sleep(self, now_ns: int) -> None:
        """Stop polling queues that have had no work for a while: for an engine that is never idle."""
        if len(self.awake) <= _FEW or now_ns < self._idle_check_due_ns:
            return
        self._idle_check_due_ns = now_ns + max(_IDLE_CHECK_NS, len(self.awake) * LOOK_NS)
        idle = [q for q in self.awake if now_ns - q.ran_ns > _IDLE_NS and not q.turbo and not q.pending()]
        if idle:
            ids = set(map(id, idle))
            self.awake = [queue for queue in self.awake if id(queue) not in ids]
            self.put_to_sleep(idle)

    def put_to_sleep(self, queues: list[EngineQueue]) -> None:
        """Put queues to sleep that are not in `awake`; those that have work meanwhile wake again."""
        for queue in queues:
            queue.note_waiting()
            queue.set_asleep(True)
        # a driver stores its tail and then reads `asleep`; we store `asleep` and then read its tail: with a
        # fence on both sides at least one of us sees the other
        linux.memory_fence()
        for queue in queues:
            if queue.pending() and not queue.closed:
                self.wake(queue)

    # ------------------------------------------------------------ blocked

    def block(self, queue: EngineQueue, deadline_ns: int | None) -> None:
        """Set a queue aside until something is signalled; the first deadline of a wait stays."""
        self.awake.remove(queue)
        self.blocked.append(queue)
        if deadline_ns is not None:
            queue.deadline_ns = queue.deadline_ns or deadline_ns

    def retry_blocked(self) -> None:
        """Let every queue that waits for an event check it again."""
        for queue in self.blocked:
            if queue not in self.awake:
                self.wake(queue)
        self.blocked.clear()

    def take_overdue(self, now_ns: int) -> list[EngineQueue]:
        """Remove the blocked queues whose deadline has passed, and return them.

        A queue stays while another one of its session waits for its turn: that may be what would signal.
        """
        late = [queue for queue in self.blocked if 0 < queue.deadline_ns <= now_ns]
        if not late:
            return []
        shares = {id(queue.share) for queue in self.awake if queue.pending()}
        overdue = [queue for queue in late if id(queue.share) not in shares]
        for queue in overdue:
            self.blocked.remove(queue)
        return overdue

    # ------------------------------------------------------------ paced

    def pace(self, queue: EngineQueue) -> None:
        """Set a queue aside until the modelled time of its submission is over."""
        self.awake.remove(queue)
        self.paced.append(queue)

    def wake_paced(self, now_ns: int) -> None:
        """Wake the queues whose modelled time is over."""
        for queue in [queue for queue in self.paced if queue.resume_ns <= now_ns]:
            self.paced.remove(queue)
            self.wake(queue)

    def next_paced_ns(self) -> int | None:
        """Return when the next of them is due, on the host's clock."""
        return min((queue.resume_ns for queue in self.paced), default=None)

    def next_deadline_ns(self) -> int | None:
        return min((queue.deadline_ns for queue in self.blocked if queue.deadline_ns), default=None)
