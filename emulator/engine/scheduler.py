"""Which queue runs next, and for how long.

The rules, in order:

- Levels: high, normal, low, background. The highest level with work runs.
- No level starves: while a higher level runs, a waiting one earns credit of a fifteenth of that time, so it
  gets a sixteenth of the device. It spends the credit in whole submissions or slices.
- Fair share: on a level the session runs that has used the least time there. All contexts and queues of a
  session have one account. A session that was idle gets no credit for the time it did not use.
- Of the queues of a session the one runs that has waited longest.
- A submission that has run for a slice makes room at the next command if another queue has precedence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

LEVELS = 4
SLICE_NS = 10_000_000
"""How long a submission keeps others of its level waiting, if its commands allow."""
_CREDIT_DIVISOR = 15
_MAX_CREDIT_NS = 4 * SLICE_NS
_MAX_LAG_NS = SLICE_NS // 10  # how far behind the minimum of its level a session that was idle may begin


class Share:
    """The account of one session: time on each level in ns, bytes of decoded programs and staging.

    `address`: where the times are, for the part in C++.
    """

    __slots__ = ("_words", "address", "kept_bytes", "spent_ns", "staging_bytes")

    def __init__(self) -> None:
        self.kept_bytes = self.staging_bytes = 0
        self._words = (ctypes.c_uint64 * LEVELS)()
        self.address = ctypes.addressof(self._words)
        self.spent_ns = memoryview(self._words).cast("B").cast("Q")


class Schedulable(Protocol):
    """What the scheduler reads of a queue; `ran_ns` is when it ran last."""

    level: int
    share: Share
    ran_ns: int

    def pending(self) -> bool:
        """Whether a submission waits."""
        ...


_Queue = TypeVar("_Queue", bound=Schedulable)


class Scheduler:
    """Pick queues and keep the accounts."""

    def __init__(self) -> None:
        self.min_spent_ns = [0] * LEVELS
        """Minimum virtual runtime of the runnable sessions of each level."""
        self._credit_ns = [0] * LEVELS
        self._runnable = 0  # levels with work at the last pick, as bits

    def pick(self, queues: list[_Queue]) -> _Queue | None:
        """Return the queue whose submission runs next, or None if none has work."""
        best: _Queue | None = None
        best_level, best_spent, best_ran, runnable = -1, 0, 0, 0
        for queue in queues:
            if not queue.pending():
                continue
            level = queue.level
            runnable |= 1 << level
            if level < best_level:
                continue
            # `_precedes` in place: with hundreds of clients most of the engine's time goes into this loop
            spent_ns = queue.share.spent_ns[level]
            if level == best_level and (
                spent_ns > best_spent or (spent_ns == best_spent and queue.ran_ns >= best_ran)
            ):
                continue
            best, best_level, best_spent, best_ran = queue, level, spent_ns, queue.ran_ns
        self._runnable = runnable
        if best is None:
            return None
        if self._runnable != 1 << best.level:
            best = self._prefer_credit(queues, best)
        level, spent = best.level, best.share.spent_ns
        used, least = spent[level], self.min_spent_ns[level]
        if used > least:
            self.min_spent_ns[level] = used
        elif used < least - _MAX_LAG_NS:
            spent[level] = least - _MAX_LAG_NS
        return best

    def adopt(self, min_spent_ns: Sequence[int], levels: Iterable[int]) -> None:
        """Take over what the part in C++ has done, where queues of one level at a time had work."""
        self.min_spent_ns = list(min_spent_ns)
        for level in levels:
            self._credit_ns[level] = max(0, self._credit_ns[level])

    def charge(self, queue: Schedulable, used_ns: int) -> None:
        """Add device time to the account of a queue's session."""
        level = queue.level
        queue.share.spent_ns[level] += used_ns
        if self._runnable == 1 << level and self._credit_ns[level] >= 0:
            return  # no other level has work
        lower = self._runnable & ((1 << level) - 1)
        if self._runnable >> (level + 1):
            self._credit_ns[level] -= used_ns
        else:
            self._credit_ns[level] = max(0, self._credit_ns[level])
        if lower:
            for other in range(level):
                if lower >> other & 1:
                    credit = self._credit_ns[other] + used_ns // _CREDIT_DIVISOR
                    self._credit_ns[other] = min(credit, _MAX_CREDIT_NS)

    def _prefer_credit(self, queues: Iterable[_Queue], best: _Queue) -> _Queue:
        """Return the best queue of a lower level that has the credit to run now, else `best`."""
        for level in range(best.level):
            if self._runnable >> level & 1 and self._credit_ns[level] >= SLICE_NS:
                chosen: _Queue | None = None
                for queue in queues:
                    if queue.level != level or not queue.pending():
                        continue
                    if chosen is None or _precedes(queue, chosen):
                        chosen = queue
                return chosen or best
        return best


def _precedes(queue: Schedulable, other: Schedulable) -> bool:
    level = queue.level
    if level != other.level:
        return level > other.level
    spent, others = queue.share.spent_ns[level], other.share.spent_ns[level]
    if spent != others:
        return spent < others
    return queue.ran_ns < other.ran_ns
