"""The duration of busy waiting before sleeping, adapted to its success rate."""

from __future__ import annotations

import os

_MAX_MISSES = 8
_RETRY_EVERY = 32
TURBO_SPIN_NS = 15_000_000
"""Duration of busy waiting on both sides of a turbo queue, that of the real driver."""


class SpinBudget:
    """A bound in nanoseconds that drops to nothing while spinning does not pay.

    With one core it is always 0: the other side could not run meanwhile.
    """

    __slots__ = ("_misses", "_skipped", "max_ns")

    gives_way = True
    """Whether to sleep at once where polling is in vain."""

    def __init__(self, max_ns: int) -> None:
        self.max_ns = max_ns if len(os.sched_getaffinity(0)) > 1 else 0
        self._misses = 0
        self._skipped = 0

    def limit_ns(self) -> int:
        """Return the duration of the next spin."""
        if self._misses < _MAX_MISSES:
            return self.max_ns
        self._skipped += 1
        return self.max_ns if self._skipped % _RETRY_EVERY == 0 else 0

    def hit(self) -> None:
        """The spin ended because what it waited for happened."""
        self._misses = 0

    def miss(self) -> None:
        """The spin ended with nothing."""
        self._misses += 1


class TurboBudget(SpinBudget):
    """The budget of a turbo queue: its user has asked for busy waiting, so it never drops."""

    __slots__ = ()

    gives_way = False

    def __init__(self) -> None:
        super().__init__(TURBO_SPIN_NS)

    def limit_ns(self) -> int:
        return self.max_ns
