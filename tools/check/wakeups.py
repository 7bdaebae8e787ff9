"""Lost wake-ups: an event is reset, and nothing orders that with a wait that could take an earlier signal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from softnpu.tools.check.clocks import Clock, Queue
from softnpu.tools.check.findings import Place

_MOST: Final = 256
NEVER_OVER: Final = 1 << 62
"""The number of a wait that has not ended."""
Event = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """A wait for an event, a signal or a reset: its number in its queue, and what was over before it."""

    queue: Queue
    number: int
    clock: Clock
    place: Callable[[], Place]

    def is_before(self, other: Moment) -> bool:
        """Return whether this one is over when `other` begins."""
        if self.queue == other.queue:
            return self.number < other.number
        return other.clock.get(self.queue, 0) >= self.number


@dataclass(slots=True)
class _History:
    waits: list[Moment] = field(default_factory=list)
    signals: list[Moment] = field(default_factory=list)
    resets: list[Moment] = field(default_factory=list)


class Wakeups:
    """What happened to each event, in the order of the replay."""

    def __init__(self) -> None:
        self._histories: dict[Event, _History] = defaultdict(_History)

    def forget(self, event: Event) -> None:
        """Begin anew: another event lies there."""
        self._histories.pop(event, None)

    def add_signal(self, event: Event, moment: Moment) -> None:
        """Add a signal."""
        self._histories[event].signals.append(moment)

    def add_reset(self, event: Event, moment: Moment) -> Iterator[tuple[Moment, Moment]]:
        """Add a reset; yield the waits, each with a signal, that it may have taken the signal from."""
        history = self._histories[event]
        history.resets.append(moment)
        for wait in history.waits:
            yield from self._lost(history, wait, moment)
        self._limit(history)

    def add_wait(self, event: Event, moment: Moment) -> Iterator[tuple[Moment, Moment]]:
        """Add a wait; yield the resets, each with a signal, that it races with."""
        history = self._histories[event]
        for reset in history.resets:
            for _, signal in self._lost(history, moment, reset):
                yield reset, signal
        history.waits.append(moment)

    def _lost(self, history: _History, wait: Moment, reset: Moment) -> Iterator[tuple[Moment, Moment]]:
        if wait.is_before(reset) or reset.is_before(wait):
            return
        for signal in history.signals:
            taken = any(signal.is_before(each) and each.is_before(wait) for each in history.resets)
            if not taken and not reset.is_before(signal) and not wait.is_before(signal):
                yield wait, signal
                return

    def _limit(self, history: _History) -> None:
        """Forget the older half: by then something else orders it."""
        for moments in (history.signals, history.waits, history.resets):
            if len(moments) > _MOST:
                del moments[: _MOST // 2]
