"""The daemon's latency in noticing a client's death and reclaiming its memory.

Both times are measured from outside, on a machine fully loaded by the clients. Time in which daemon or
observer were runnable and waited for a processor comes from the kernel and is not counted; clock times are
also reported.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from softnpu.emulator.interface.messages import StatusAnswer
from softnpu.tools.stress.daemon_usage import orphaned

NOTICE_LIMIT_S: Final = 0.1
MEMORY_LIMIT_S: Final = 1.0
RESET_ALLOWANCE_S: Final = 5.0
"""Nothing of a device is reclaimed while its engine hangs or is replaced."""


class Delays(NamedTuple):
    """Seconds that processes have waited for a processor so far: this one, the supervisor, the engines."""

    own: float
    supervisor: float
    engines: dict[int, float]

    @classmethod
    def now(cls, status: StatusAnswer) -> Delays:
        """Read the kernel's counts."""
        engines = {engine.engine_pid: _delay(engine.engine_pid) for engine in status.engines}
        return cls(_delay(os.getpid()), _delay(status.pid), engines)

    def since(self, before: Delays) -> tuple[float, float]:
        """Return seconds since then to exclude from noticing and from reclaiming memory."""
        own, supervisor = self.own - before.own, self.supervisor - before.supervisor
        engine = max(
            (delay - before.engines[pid] for pid, delay in self.engines.items() if pid in before.engines),
            default=0.0,
        )
        # they may wait concurrently: only the longest counts
        return max(own, supervisor), max(own, supervisor, engine)


class Death(msgspec.Struct, kw_only=True):
    """One death at time `at` (monotonic seconds); when it was noticed and all memory reclaimed, 0 if not yet.

    `waited` and `waited_back` are the parts of the two times spent waiting for a processor. `reset`: the
    device hung or was being reset meanwhile.
    """

    client: int
    pid: int
    session: int
    at: float
    noticed: float = 0.0
    back: float = 0.0
    waited: float = 0.0
    waited_back: float = 0.0
    reset: bool = False

    @property
    def notice_s(self) -> float:
        """Seconds until it was noticed."""
        return max(0.0, self.noticed - self.at - self.waited)

    @property
    def back_s(self) -> float:
        """Seconds until its memory was reclaimed."""
        return max(0.0, self.back - self.at - self.waited_back)


class Deaths:
    """Deaths of clients being watched, and all past ones."""

    def __init__(self) -> None:
        self.done: list[Death] = []
        self._watched: list[tuple[Death, Delays]] = []
        self._restarts = -1
        self._status: StatusAnswer | None = None

    def note(self, client: int, pid: int, session: int, now: float) -> None:
        """Note that a client has just died."""
        assert self._status is not None  # the coordinator has asked before starting any client
        death = Death(client=client, pid=pid, session=session, at=now)
        self._watched.append((death, Delays.now(self._status)))

    @property
    def pending(self) -> bool:
        """Whether the daemon must be asked soon."""
        return bool(self._watched)

    def update(self, status: StatusAnswer, now: float, hanging: bool) -> None:
        """Apply the daemon's status at `now`; `hanging`: a client makes the device hang."""
        restarts = sum(engine.restarts for engine in status.engines)
        stopped = restarts != self._restarts or any(engine.state != "ready" for engine in status.engines)
        self._restarts, self._status = restarts, status
        if not self._watched:
            return
        alive = {session.pid for session in status.sessions}
        clean = orphaned(status) <= 0
        delays = Delays.now(status)
        for death, before in self._watched:
            waited, waited_back = delays.since(before)
            death.reset = death.reset or stopped or hanging
            if not death.noticed and death.pid not in alive:
                death.noticed, death.waited = now, waited
            if death.noticed and clean:
                death.back = now
            death.waited_back = waited_back
        self.done += [death for death, _ in self._watched if death.back]
        self._watched = [each for each in self._watched if not each[0].back]

    def overdue(self, now: float) -> list[str]:
        """Describe overdue deaths, and stop watching them."""
        overdue = []
        for each in list(self._watched):
            death = each[0]
            limit = MEMORY_LIMIT_S + (RESET_ALLOWANCE_S if death.reset else 0.0)
            if now - death.at - death.waited_back > limit:
                state = "noticed, its memory is not back" if death.noticed else "not noticed"
                overdue.append(f"death of client {death.client} (pid {death.pid}): {state} after {limit:g} s")
                self._watched.remove(each)
        return overdue


def _delay(pid: int) -> float:
    """Return seconds that a process's first thread has waited for a processor; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Median and maximum of `count` times, in seconds."""

    count: int = 0
    median: float = 0.0
    maximum: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        """Summarise these times."""
        if not values:
            return cls()
        return cls(count=len(values), median=statistics.median(values), maximum=max(values))
