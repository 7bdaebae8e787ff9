"""How long to wait busily before sleeping, learnt from how often it was worth it."""

from __future__ import annotations

import os

_GIVE_UP_AFTER = 8
_TRY_AGAIN_EVERY = 32
TURBO_SPIN_NS = 15_000_000
"""How long both sides of a turbo queue wait busily: as long as the real driver does."""


class SpinBudget:
    """A bound in nanoseconds that drops to nothing while spinning does not pay.

    Spinning is given up at once when there is only one core: the other side could not run meanwhile.
    """

    __slots__ = ("_max_ns", "_misses", "_skipped")

    def __init__(self, max_ns: int) -> None:
        self._max_ns = max_ns if len(os.sched_getaffinity(0)) > 1 else 0
        self._misses = 0
        self._skipped = 0

    def limit_ns(self) -> int:
        """How long to spin this time."""
        if self._misses < _GIVE_UP_AFTER:
            return self._max_ns
        self._skipped += 1
        return self._max_ns if self._skipped % _TRY_AGAIN_EVERY == 0 else 0

    def hit(self) -> None:
        """The spin ended because what it waited for happened."""
        self._misses = 0

    def miss(self) -> None:
        """The spin ended with nothing."""
        self._misses += 1


class TurboBudget(SpinBudget):
    """The budget of a turbo queue: its user has asked for busy waiting, so it is never given up."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(TURBO_SPIN_NS)

    def limit_ns(self) -> int:
        return self._max_ns
