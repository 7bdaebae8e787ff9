"""A minute of a device's history in one line of text."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SPAN_S: Final = 60.0
_COLUMN_S: Final = 2.0
_LEVELS: Final = "▁▂▃▄▅▆▇█"


class _Period(NamedTuple):
    begin: float
    end: float
    share: float


class History:
    """Shares, 0 to 1, of periods that end one after the other."""

    def __init__(self) -> None:
        self._periods: deque[_Period] = deque()

    def add(self, end: float, length_s: float, share: float) -> None:
        """Add the period of this length that ends now; forget those of more than a minute ago."""
        self._periods.append(_Period(end - length_s, end, share))
        while self._periods[0].end <= end - SPAN_S:
            self._periods.popleft()

    def line(self) -> str:
        """Return the highest share of every two seconds, the latest on the right; blank if unknown."""
        count = round(SPAN_S / _COLUMN_S)
        if not self._periods:
            return " " * count
        first = self._periods[-1].end - SPAN_S
        return "".join(self._column(first + number * _COLUMN_S) for number in range(count))

    def _column(self, begin: float) -> str:
        shares = [each.share for each in self._periods if each.begin < begin + _COLUMN_S and each.end > begin]
        return _LEVELS[min(len(_LEVELS) - 1, int(max(shares) * len(_LEVELS)))] if shares else " "
