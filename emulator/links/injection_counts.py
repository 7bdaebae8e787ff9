"""Counts of matches and hits of injections: two counters each, shared by supervisor and engines.

Engines of different users share none. The supervisor only reads an engine's counts, and never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from softnpu.emulator.common import linux
from softnpu.emulator.common.shared_counts import COUNT_SIZE, SharedCounts
from softnpu.emulator.interface.injections import Injection

_EACH = 2  # operations that matched, operations that were hit


class InjectionCounters:
    """The counters of up to `capacity` injections, each in a slot of its own."""

    def __init__(self, fd: int, capacity: int) -> None:
        self._counts = SharedCounts(fd, _EACH * capacity)
        self.fd = fd
        self.capacity = capacity

    @classmethod
    def new(cls, capacity: int) -> InjectionCounters:
        """Create them in new shared memory."""
        return cls(linux.fixed_memfd("injections", _EACH * COUNT_SIZE * capacity), capacity)

    def clear(self, slot: int) -> None:
        """Reset a slot for another injection, without the lock, which its holder may never release."""
        self._counts.put(_EACH * slot, 0)
        self._counts.put(_EACH * slot + 1, 0)

    def hit(self, slot: int, injection: Injection, note: Callable[[int], None] = lambda _hits: None) -> bool:
        """Count a matching operation; return whether it is hit.

        `note` is called before a hit counts, with the new count: see `settle`.
        """
        counts, at = self._counts, _EACH * slot
        with counts.locked():
            hits = counts.get(at + 1)
            if injection.count is not None and hits >= injection.count:
                return False
            matched = counts.get(at) + 1
            counts.put(at, matched)
            if matched <= injection.after or not injection.chosen(matched):
                return False
            note(hits + 1)
            counts.put(at + 1, hits + 1)
        return True

    def settle(self, slot: int, hits: int) -> None:
        """Count a hit logged by an engine, unless the engine had counted it before it died."""
        with self._counts.locked():
            at = _EACH * slot + 1
            self._counts.put(at, max(hits, self._counts.get(at)))

    def read(self, slot: int) -> tuple[int, int]:
        """Return how many operations matched, and how many were hit; never blocks."""
        hits = self._counts.get(_EACH * slot + 1)
        return max(hits, self._counts.get(_EACH * slot)), hits

    def is_exhausted(self, slot: int, injection: Injection) -> bool:
        """Return whether the injection is used up."""
        return injection.count is not None and self.read(slot)[1] >= injection.count

    def close(self) -> None:
        """Close mapping and descriptor."""
        self._counts.close()
