"""Whether a child does anything: the CPU time that it uses, and what its threads do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from softnpu.emulator.supervisor.reactor import Reactor, Timer

_BUSY = frozenset("RD")  # runs or would like to; waits for a disk
_STOPPED = frozenset("Tt")
_CPU_NS = 1_000_000


class Activity:
    """Read the state of a process from outside. A process that has ended uses no CPU and has no threads."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # the clock of another process: the complement of its pid, shifted, and 2 for all its CPU time
        self._clock = (~pid << 3) | 2

    def cpu_ns(self) -> int:
        """CPU time that all its threads have used."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return 0

    def busy(self, main_too: bool) -> bool:
        """Whether one of its threads runs, wants to run, or waits for a disk at this moment."""
        states = self._states()
        main = states.pop(self._pid, "")
        return any(state in _BUSY for state in states.values()) or (main_too and main in _BUSY)

    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP, a debugger)."""
        return self._states().get(self._pid, "") in _STOPPED

    def _states(self) -> dict[int, str]:
        states = {}
        folder = Path(f"/proc/{self._pid}/task")
        try:
            for name in os.listdir(folder):
                # the command name may hold spaces and brackets: the state follows its last bracket
                states[int(name)] = (folder / name / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return states  # a thread or all of it has ended
        return states


class StallWatch:
    """Call `on_stall(seconds)` once when a process has done nothing for `limit_s` while it was watched.

    Only time that this process has seen pass counts.
    """

    def __init__(self, reactor: Reactor, pid: int, limit_s: float, on_stall: Callable[[float], None]) -> None:
        self._reactor = reactor
        self._activity = Activity(pid)
        self._limit_s = limit_s
        self._period_s = limit_s / 8
        self._on_stall = on_stall
        self._timer: Timer | None = None
        self._quiet_s = 0.0
        self._cpu_ns = 0
        self._ticked = 0.0

    def begin(self) -> None:
        """Watch: the process has something to do from now on."""
        self.end()
        self._quiet_s, self._ticked = 0.0, time.monotonic()
        self._timer = self._reactor.after(self._period_s, self._tick)

    def end(self) -> None:
        """Stop watching: it has nothing to do any more; harmless when repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now, cpu_ns = time.monotonic(), self._activity.cpu_ns()
        self._quiet_s += min(now - self._ticked, 2 * self._period_s)
        if cpu_ns - self._cpu_ns >= _CPU_NS:
            self._cpu_ns, self._quiet_s = cpu_ns, 0.0
        self._ticked = now
        if self._quiet_s >= self._limit_s and not self._activity.busy(main_too=True):
            self._timer = None
            self._on_stall(self._quiet_s)
            return
        self._timer = self._reactor.after(self._period_s, self._tick)
