"""The rings that the engine polls, by session and level: who has many makes no turn of others longer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, Generic, Protocol, TypeVar

from softnpu.emulator.engine.share import Share

LOOKS: Final = 16
"""At so many rings of a session the engine looks for each turn that it gives to anybody."""


class Schedulable(Protocol):
    """What the scheduler reads of a queue; `ran_ns` is when it ran last."""

    level: int
    share: Share
    ran_ns: int

    def pending(self) -> bool:
        """Whether a submission waits."""
        ...


Q = TypeVar("Q", bound=Schedulable)


class Group(Generic[Q]):
    """The queues of one session on one level. `only`: its queue, if it has one. `bit`: of its level."""

    __slots__ = ("bit", "level", "only", "queues", "share", "spent_ns")

    def __init__(self, share: Share, level: int) -> None:
        self.share = share
        self.level = level
        self.bit = 1 << level
        self.spent_ns = share.spent_ns
        self.queues: OrderedDict[Q, None] = OrderedDict()
        self.only: Q | None = None

    def next(self) -> Q | None:
        """Return the queue with work that has waited longest, of a large group that of its first few.

        If none of these has work, they are looked at again after all others.
        """
        best: Q | None = None
        for queue in islice(self.queues, LOOKS):
            if queue.pending() and (best is None or queue.ran_ns < best.ran_ns):
                best = queue
        if best is None:
            self.turn()
        return best

    def turn(self) -> None:
        """Have others looked at first next time, if there are many."""
        if len(self.queues) > LOOKS:
            for queue in list(islice(self.queues, LOOKS)):
                self.queues.move_to_end(queue)

    def has_work(self) -> bool:
        """Look at all of them."""
        return any(queue.pending() for queue in self.queues)

    def count(self) -> None:
        """Note whether there is one queue only."""
        self.only = next(iter(self.queues)) if len(self.queues) == 1 else None


class Polled(Generic[Q]):
    """The groups that have queues. A queue must leave before its level changes."""

    def __init__(self) -> None:
        self.groups: dict[tuple[Share, int], Group[Q]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Q]:
        return chain.from_iterable(group.queues for group in self.groups.values())

    def __contains__(self, queue: Q) -> bool:
        group = self.groups.get((queue.share, queue.level))
        return group is not None and queue in group.queues

    def add(self, queue: Q) -> None:
        """Poll a queue, after all others of its group."""
        key = queue.share, queue.level
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(*key)
        if queue not in group.queues:
            group.queues[queue] = None
            self._count += 1
            group.count()

    def discard(self, queue: Q) -> None:
        """Poll a queue no longer; harmless for one that is not polled."""
        key = queue.share, queue.level
        group = self.groups.get(key)
        if group is None or queue not in group.queues:
            return
        del group.queues[queue]
        self._count -= 1
        group.count()
        if not group.queues:
            del self.groups[key]

    def has_large_group(self, size: int) -> bool:
        """Whether a session polls more than so many queues on one level."""
        return self._count > size and any(len(group.queues) > size for group in self.groups.values())

    def has_work(self, share: Share) -> bool:
        """Whether a queue of a session has work; looks at all of them."""
        return any(group.has_work() for group in self.groups.values() if group.share is share)
