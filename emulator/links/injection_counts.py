"""How often injections have matched and hit: two counters each, shared by the supervisor and all engines."""

from __future__ import annotations

from softnpu.emulator.common import linux
from softnpu.emulator.common.shared_counts import COUNT_SIZE, SharedCounts
from softnpu.emulator.interface.injections import Injection

_EACH = 2  # operations that matched, operations that were hit


class InjectionCounters:
    """The counters of up to `places` injections."""

    def __init__(self, fd: int, places: int) -> None:
        self._counts = SharedCounts(fd, _EACH * places)
        self.fd = fd
        self.places = places

    @classmethod
    def new(cls, places: int) -> InjectionCounters:
        """Fresh ones."""
        return cls(linux.memfd("injections", _EACH * COUNT_SIZE * places), places)

    def clear(self, place: int) -> None:
        """The place is another injection's from now on."""
        with self._counts.locked():
            self._counts.put(_EACH * place, 0)
            self._counts.put(_EACH * place + 1, 0)

    def hit(self, place: int, injection: Injection) -> bool:
        """One more operation that matches: whether it is hit."""
        counts, at = self._counts, _EACH * place
        with counts.locked():
            hits = counts.get(at + 1)
            if injection.count is not None and hits >= injection.count:
                return False
            matched = counts.get(at) + 1
            counts.put(at, matched)
            if matched <= injection.after or not injection.chosen(matched):
                return False
            counts.put(at + 1, hits + 1)
        return True

    def told(self, place: int) -> tuple[int, int]:
        """Operations that matched, and those that were hit."""
        with self._counts.locked():
            return self._counts.get(_EACH * place), self._counts.get(_EACH * place + 1)

    def close(self) -> None:
        """Closes mapping and descriptor."""
        self._counts.close()

    def is_exhausted(self, place: int, injection: Injection) -> bool:
        """Whether it has hit as often as it was to."""
        return injection.count is not None and self.told(place)[1] >= injection.count
