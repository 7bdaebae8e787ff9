"""Start addresses of memory, in order; one of 100,000 is added and removed among few."""

from __future__ import annotations

import bisect
from typing import Final

_REGION_BITS: Final = 18
"""At most 4096 small blocks begin in a region; of larger ones, one or two."""


class AddressIndex:
    """A sorted multiset of addresses."""

    def __init__(self) -> None:
        self._regions: list[int] = []  # those with addresses
        self._starts: dict[int, list[int]] = {}  # by region

    def add(self, address: int) -> None:
        region = address >> _REGION_BITS
        if region not in self._starts:
            bisect.insort(self._regions, region)
        bisect.insort(self._starts.setdefault(region, []), address)

    def remove(self, address: int) -> None:
        """Remove one entry of an address that was added."""
        region = address >> _REGION_BITS
        starts = self._starts[region]
        del starts[bisect.bisect_left(starts, address)]
        if not starts:
            del self._starts[region], self._regions[bisect.bisect_left(self._regions, region)]

    def last_until(self, address: int) -> int | None:
        """Return the last start at or before an address, if any."""
        region = address >> _REGION_BITS
        starts = self._starts.get(region)
        if starts is not None and starts[0] <= address:
            return starts[bisect.bisect_right(starts, address) - 1]
        index = bisect.bisect_left(self._regions, region)
        return self._starts[self._regions[index - 1]][-1] if index else None

    def clear(self) -> None:
        self._regions.clear()
        self._starts.clear()
