"""Processes whose submissions cost everybody an engine reset: first slowed, then refused for a while.

One reset may be bad luck. From the second within a minute on the process is slowed: its queues run when
nobody else has work, and it waits for new ones. From the fourth on its queues are lost, and it gets no new
contexts and queues until a minute has passed since the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from softnpu.emulator.common import process_identity
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse

WINDOW_S = 60.0
SLOW_FROM = 2
REFUSE_FROM = 4
_FIRST_DELAY_S = 0.5
_REMEMBERED = 4096
_EXPECTED = f"fewer than {REFUSE_FROM}"
_HINT = "find out why its commands hang or crash; the daemon's log names each of them"


def identity(pid: int, session: int) -> str:
    """Who a session is: its process, so that a new session is no fresh start; else the session."""
    try:
        return f"process {pid}.{process_identity.start_time(pid)}"
    except OSError:
        return f"session {session}"


class BanPolicy:
    """Who has caused engine resets lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._offences: dict[str, list[float]] = {}

    def note(self, who: str) -> int:
        """One more reset; how many there were within the window."""
        if len(self._offences) >= _REMEMBERED:
            self._offences = {name: times for name in self._offences if (times := self._recent(name))}
        times = self._recent(who)
        times.append(self._clock())
        self._offences[who] = times
        return len(times)

    def count(self, who: str) -> int:
        """How many resets within the window."""
        return len(self._recent(who)) if self._offences else 0

    def slowed(self, who: str) -> bool:
        """Whether it runs in the background for now."""
        return self.count(who) >= SLOW_FROM

    def refused(self, who: str) -> bool:
        """Whether nothing of it runs for now."""
        return self.count(who) >= REFUSE_FROM

    def delay_s(self, who: str) -> float:
        """How long it waits for a new queue."""
        count = self.count(who)
        return _FIRST_DELAY_S * 2.0 ** (count - SLOW_FROM) if count >= SLOW_FROM else 0.0

    def left_s(self, who: str) -> float:
        """How long until its last offence is forgotten."""
        times = self._recent(who)
        return max(0.0, times[-1] + WINDOW_S - self._clock()) if times else 0.0

    def check(self, who: str, object: str) -> None:
        """Refuses a process that has gone too far, with the time until it may come back."""
        if self.refused(who):
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE, object, found=self._found(who), expected=_EXPECTED, hint=_HINT
            )

    def info(self, who: str) -> ErrorInfo:
        """What becomes of the queues of such a process."""
        return ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object="command queue",
            found=self._found(who),
            expected=_EXPECTED,
            hint=_HINT,
        )

    def _found(self, who: str) -> str:
        count, left = self.count(who), self.left_s(who)
        return (
            f"submissions of this process have caused {count} engine resets within {WINDOW_S:g} s; "
            f"refused for {left:.0f} s more"
        )

    def _recent(self, who: str) -> list[float]:
        times = self._offences.get(who, [])
        if not times or times[-1] <= self._clock() - WINDOW_S:
            return []  # all are forgotten together: who goes on offending is not let in again half-way
        return list(times)
