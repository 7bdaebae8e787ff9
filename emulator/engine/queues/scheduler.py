"""The scheduler: which queue runs next, and for how long.

The rules, in order:

- Levels: high, normal, low, background. The highest level with work runs.
- No level starves: while a higher level runs, a waiting one earns credit of a fifteenth of that time, so it
  gets a sixteenth of the device. It spends the credit in whole submissions or slices.
- Fair share: on a level, the session that has used the least time runs. All contexts and queues of a session
  share one account. An idle session earns no credit for unused time.
- Within a session, the queue that has waited longest runs. With more than a few queues they take turns
  instead.
- A submission that has run for a slice is preempted at the next command if another queue has precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from softnpu.emulator.engine.queues.polled import Group, Polled, Schedulable
from softnpu.emulator.engine.share import LEVELS

SLICE_NS = 10_000_000
"""Duration after which others of the same level may preempt a submission, at the next command."""
_CREDIT_DIVISOR = 15
_MAX_CREDIT_NS = 4 * SLICE_NS
_MAX_LAG_NS = SLICE_NS // 10  # how far below the minimum of its level an idle session may start
_Queue = TypeVar("_Queue", bound=Schedulable)
_Chores = TypeVar("_Chores", bound=Schedulable)
_NOTHING: Polled[Any] = Polled()


class Scheduler:
    """Picks queues and keeps the accounts."""

    def __init__(self) -> None:
        self.min_spent_ns = [0] * LEVELS
        """Minimum virtual runtime of the runnable sessions on each level."""
        self._credit_ns = [0] * LEVELS
        self._runnable = 0  # levels with work at the last pick, as bits

    def pick(self, queues: Polled[_Queue], chores: Polled[_Chores] = _NOTHING) -> _Queue | _Chores | None:
        """Return the queue whose submission runs next, or None if none has work.

        Sessions' `chores` are scheduled among them.
        """
        best: _Queue | _Chores | None = None
        best_level, best_spent, best_ran, runnable = -1, 0, 0, 0
        chosen: Group[Any] | None = None
        groups: Collection[Group[Any]] = queues.groups.values()
        if chores.groups:
            groups = [*groups, *chores.groups.values()]
        for group in groups:
            # `_precedes` inlined: with hundreds of clients this loop takes most of the engine's time
            queue = group.only or group.next()
            if queue is None or not queue.pending():
                continue
            level = group.level
            runnable |= group.bit
            if level < best_level:
                continue
            spent_ns = group.spent_ns[level]
            if level == best_level and (
                spent_ns > best_spent or (spent_ns == best_spent and queue.ran_ns >= best_ran)
            ):
                continue
            best, best_level, best_spent, best_ran = queue, level, spent_ns, queue.ran_ns
            chosen = group
        self._runnable = runnable
        if best is None or chosen is None:
            return None
        if runnable != 1 << best_level:
            best, chosen = self._prefer_credit(groups, best, chosen)
        if chosen.only is None:
            chosen.turn()
        level, spent = best.level, best.share.spent_ns
        used, least = spent[level], self.min_spent_ns[level]
        if used > least:
            self.min_spent_ns[level] = used
        elif used < least - _MAX_LAG_NS:
            spent[level] = least - _MAX_LAG_NS
        return best

    def adopt(self, min_spent_ns: Sequence[int], levels: Iterable[int]) -> None:
        """Take over the accounts of the C++ part, which runs queues of one level at a time."""
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

    def _prefer_credit(
        self, groups: Collection[Group[Any]], best: _Queue, group: Group[Any]
    ) -> tuple[_Queue, Group[Any]]:
        """Return the best queue of a lower level that has the credit to run now, or `best`; its group."""
        for level in range(best.level):
            if self._runnable >> level & 1 and self._credit_ns[level] >= SLICE_NS:
                of_level = ((each.next(), each) for each in groups if each.level == level)
                waiting = [(queue, each) for queue, each in of_level if queue is not None]
                if waiting:
                    return min(waiting, key=lambda entry: (entry[1].share.spent_ns[level], entry[0].ran_ns))
        return best, group
