"""Which queue runs next, and for how long.

The rule, from the first to the last:

- Levels: high, normal, low, background. The highest level that has work runs.
- Nobody starves: a level that waits while a higher one runs earns a fifteenth of the time that it sees pass,
  so it gets a sixteenth of the device. It is spent in whole submissions or slices.
- Fair share: on a level the session runs that has had the least time there. All contexts and queues of a
  session have one account. Who comes back from idleness has no claim on time that others had meanwhile.
- Of the queues of a session it is the one that has waited longest.
- A submission that has run for a slice makes room at the next command if somebody else has the better claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softnpu.emulator.engine.queue import EngineQueue

LEVELS = 4
SLICE_NS = 10_000_000
"""How long a submission keeps others of its level waiting, if its commands allow."""
_EARNED = 15  # a waiting level earns one part of so many that higher ones use
_MOST_EARNED_NS = 4 * SLICE_NS
_LAG_NS = SLICE_NS // 10  # how much of what it missed somebody may make up for


class Share:
    """The account of one session: nanoseconds on each level, bytes of decoded programs."""

    __slots__ = ("kept_bytes", "spent_ns")

    def __init__(self) -> None:
        self.kept_bytes = 0
        self.spent_ns = [0] * LEVELS


class Scheduler:
    """Picks queues and keeps the accounts. Clock of a level: what the least of those with work has had."""

    def __init__(self) -> None:
        self._clock_ns = [0] * LEVELS
        self._earned_ns = [0] * LEVELS
        self._waiting = 0  # levels that had work at the last look, as bits

    def pick(self, queues: list[EngineQueue]) -> EngineQueue | None:
        """The queue whose submission runs next; None when no queue has one."""
        best: EngineQueue | None = None
        self._waiting = 0
        for queue in queues:
            if not queue.pending():
                continue
            self._waiting |= 1 << queue.level
            if best is None or _goes_before(queue, best):
                best = queue
        if best is None:
            return None
        if self._waiting != 1 << best.level:
            best = self._whose_turn(queues, best)
        level, spent = best.level, best.share.spent_ns
        had, clock = spent[level], self._clock_ns[level]
        if had > clock:
            self._clock_ns[level] = had
        elif had < clock - _LAG_NS:
            spent[level] = clock - _LAG_NS
        return best

    def charge(self, queue: EngineQueue, used_ns: int) -> None:
        """The queue has used so much of the device's time."""
        level = queue.level
        queue.share.spent_ns[level] += used_ns
        if self._waiting == 1 << level and self._earned_ns[level] >= 0:
            return  # nobody of another level
        lower = self._waiting & ((1 << level) - 1)
        if self._waiting >> (level + 1):
            self._earned_ns[level] -= used_ns  # it ran on what it had earned
        else:
            self._earned_ns[level] = max(0, self._earned_ns[level])
        if lower:
            for other in range(level):
                if lower >> other & 1:
                    earned = self._earned_ns[other] + used_ns // _EARNED
                    self._earned_ns[other] = min(earned, _MOST_EARNED_NS)

    def _whose_turn(self, queues: list[EngineQueue], best: EngineQueue) -> EngineQueue:
        """`best`, or the best of a lower level that has earned its turn."""
        for level in range(best.level):
            if self._waiting >> level & 1 and self._earned_ns[level] >= SLICE_NS:
                chosen: EngineQueue | None = None
                for queue in queues:
                    if queue.level != level or not queue.pending():
                        continue
                    if chosen is None or _goes_before(queue, chosen):
                        chosen = queue
                return chosen or best
        return best


def _goes_before(queue: EngineQueue, other: EngineQueue) -> bool:
    level = queue.level
    if level != other.level:
        return level > other.level
    spent, others = queue.share.spent_ns[level], other.share.spent_ns[level]
    if spent != others:
        return spent < others
    return queue.ran_ns < other.ran_ns
