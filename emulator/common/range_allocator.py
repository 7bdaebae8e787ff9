"""Allocation of ranges of a file: for the segments of a context, and for the staging of an engine."""

from __future__ import annotations

import bisect


class RangeAllocator:
    """First fit over `size` bytes; neighbouring free ranges are always merged."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts = [0]
        self._ends = [size]

    @property
    def empty(self) -> bool:
        """Whether nothing is allocated."""
        return self._starts == [0] and self._ends == [self.size]

    def allocate(self, size: int, alignment: int) -> int | None:
        """Allocate `size` bytes and return their offset; None when no free range is large enough."""
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            at = -(-start // alignment) * alignment
            if at + size <= end:
                pieces = [(start, at), (at + size, end)]
                kept = [piece for piece in pieces if piece[0] < piece[1]]
                self._starts[index : index + 1] = [piece[0] for piece in kept]
                self._ends[index : index + 1] = [piece[1] for piece in kept]
                return at
        return None

    def free(self, offset: int, size: int) -> int:
        """Free an allocated range; return the size of the free range that it is now in."""
        index = bisect.bisect_left(self._starts, offset)
        end = offset + size
        if index < len(self._starts) and self._starts[index] == end:
            self._starts[index] = offset
        else:
            self._starts.insert(index, offset)
            self._ends.insert(index, end)
        if index > 0 and self._ends[index - 1] == offset:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
            index -= 1
        return self._ends[index] - self._starts[index]
