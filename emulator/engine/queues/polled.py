"""The polled rings, by session and level, so that a session with many does not delay others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, Generic, Protocol, TypeVar

from softnpu.emulator.engine.share import Share

LOOKS: Final = 16
"""Rings of a session checked per scheduling decision."""


class Schedulable(Protocol):
    """A queue as seen by the scheduler; `ran_ns` is when it last ran."""

    level: int
    share: Share
    ran_ns: int

    def pending(self) -> bool:
        """Whether a submission waits."""
        ...


Q = TypeVar("Q", bound=Schedulable)


class Group(Generic[Q]):
    """The queues of one session on one level. `only`: its queue, if just one. `bit`: that of its level."""

    __slots__ = ("bit", "level", "only", "queues", "share", "spent_ns")

    def __init__(self, share: Share, level: int) -> None:
        self.share = share
        self.level = level
        self.bit = 1 << level
        self.spent_ns = share.spent_ns
        self.queues: OrderedDict[Q, None] = OrderedDict()
        self.only: Q | None = None

    def next(self) -> Q | None:
        """Return the queue with work that has waited longest, in a large group among the first few.

        If none of these has work, they move behind all others.
        """
        best: Q | None = None
        for queue in islice(self.queues, LOOKS):
            if queue.pending() and (best is None or queue.ran_ns < best.ran_ns):
                best = queue
        if best is None:
            self.turn()
        return best

    def turn(self) -> None:
        """Rotate a large group, so that others are checked first next time."""
        if len(self.queues) > LOOKS:
            for queue in list(islice(self.queues, LOOKS)):
                self.queues.move_to_end(queue)

    def has_work(self) -> bool:
        """Return whether any queue has work."""
        return any(queue.pending() for queue in self.queues)

    def count(self) -> None:
        """Update `only`."""
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
        """Start polling a queue, behind all others of its group."""
        key = queue.share, queue.level
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(*key)
        if queue not in group.queues:
            group.queues[queue] = None
            self._count += 1
            group.count()

    def discard(self, queue: Q) -> None:
        """Stop polling a queue; a no-op if it is not polled."""
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
        """Whether a session has more than `size` polled queues on one level."""
        return self._count > size and any(len(group.queues) > size for group in self.groups.values())

    def has_work(self, share: Share) -> bool:
        """Whether any queue of a session has work; checks all of them."""
        return any(group.has_work() for group in self.groups.values() if group.share is share)
