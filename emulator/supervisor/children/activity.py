"""The activity of a child: its CPU time and the states of its threads."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from softnpu.emulator.supervisor.reactor import Reactor, Timer

_BUSY = frozenset("RD")  # runs or would like to; waits for a disk
_OF_FILES = {
    "x86_64": frozenset(["0", "2", "3", "4", "5", "17", "89", "138", "254", "257", "262", "267", "332"]),
    "aarch64": frozenset(["27", "44", "56", "57", "63", "67", "78", "79", "80", "291"]),
}.get(platform.machine(), frozenset())
"""System calls on files."""
_LONGEST_DISK_WAITS = 3
_STOPPED = frozenset("Tt")
_CPU_NS = 1_000_000


class Activity:
    """Reads the state of a process from outside. An ended process uses no more CPU and has no threads."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # the clock of another process: the complement of its pid, shifted, and 2 for all its CPU time
        self._clock = (~pid << 3) | 2
        self._cpu_ns = 0

    def cpu_ns(self) -> int:
        """CPU time of all its threads; once it has ended, what was last read."""
        with suppress(OSError):
            self._cpu_ns = time.clock_gettime_ns(self._clock)
        return self._cpu_ns

    def busy(self, main_too: bool) -> bool:
        """Whether one of its threads runs, wants to run, or waits for a disk at this moment."""
        states = self._states()
        main = states.pop(self._pid, "")
        return any(state in _BUSY for state in states.values()) or (main_too and main in _BUSY)

    def file_waits(self, loader: int) -> dict[int, str]:
        """Return threads blocked on a file: in a page fault, or `loader` in a system call.

        Maps each thread to its activity and CPU time; an unchanged value is the same wait. Empty where the
        kernel does not provide it. A thread stopped while it ran, or waited for a core, looks as in a fault.
        """
        waits = {}
        folder = Path(f"/proc/{self._pid}/task")
        try:
            for name in os.listdir(folder):
                call = (folder / name / "syscall").read_text().split()
                blocks = call[0] == "-1" or (int(name) == loader and call[0] in _OF_FILES)
                if blocks and _state(folder / name) not in _STOPPED:
                    used = (folder / name / "schedstat").read_text().split()[0]
                    waits[int(name)] = f"{call} {used}"
        except (OSError, IndexError):
            return waits  # a thread or all of it has ended
        return waits

    def runs(self) -> bool:
        """Whether one of its threads runs or would like to."""
        return "R" in self._states().values()

    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP, a debugger)."""
        return self._states().get(self._pid, "") in _STOPPED

    def _states(self) -> dict[int, str]:
        states = {}
        folder = Path(f"/proc/{self._pid}/task")
        try:
            for name in os.listdir(folder):
                states[int(name)] = _state(folder / name)
        except (OSError, IndexError):
            return states  # a thread or all of it has ended
        return states


def _state(thread: Path) -> str:
    # the command name may hold spaces and brackets: the state follows its last bracket
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


class StallWatch:
    """Calls `on_stall(seconds)` once when a watched process has done nothing for `limit_s`.

    Only time observed by this process counts. `on_overrun()` is called once when it has used more than
    `cpu_limit_s` of CPU time since `begin`. Both cover all processes joined.
    """

    def __init__(
        self,
        reactor: Reactor,
        pid: int,
        limit_s: float,
        cpu_limit_s: float,
        on_stall: Callable[[float], None],
        on_overrun: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._lasting = [Activity(pid)]
        self._passing: Activity | None = None
        self._limit_s = limit_s
        self._period_s = limit_s / 8
        self._on_stall = on_stall
        self._cpu_limit_ns = cpu_limit_s * 1e9
        self._on_overrun = on_overrun
        self._timer: Timer | None = None
        self._quiet_s = 0.0
        self._cpu_ns = 0
        self._first_ns = 0
        self._ticked = 0.0

    def join(self, pid: int) -> None:
        """Watch another process as well."""
        self._lasting.append(Activity(pid))

    def follow(self, pid: int) -> None:
        """Watch the process that now works for it, instead of the previous one."""
        self._passing = Activity(pid)
        self._cpu_ns, self._quiet_s = self._used_ns(), 0.0

    def begin(self) -> None:
        """Start watching: the process has work."""
        self.end()
        self._passing = None
        self._quiet_s, self._ticked = 0.0, time.monotonic()
        self._first_ns = self._cpu_ns = self._used_ns()
        self._timer = self._reactor.every(self._period_s, self._tick)

    def end(self) -> None:
        """Stop watching: the process is idle; harmless when repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _activities(self) -> list[Activity]:
        return self._lasting if self._passing is None else [*self._lasting, self._passing]

    def _used_ns(self) -> int:
        return sum(activity.cpu_ns() for activity in self._activities)

    def _waits(self) -> bool:
        """Whether it waits for a core, or not too long yet for a disk."""
        if self._quiet_s >= _LONGEST_DISK_WAITS * self._limit_s:
            return any(activity.runs() for activity in self._activities)
        return any(activity.busy(main_too=True) for activity in self._activities)

    def _tick(self) -> None:
        now, cpu_ns = time.monotonic(), self._used_ns()
        self._quiet_s += min(now - self._ticked, 2 * self._period_s)
        if cpu_ns - self._cpu_ns >= _CPU_NS:
            self._cpu_ns, self._quiet_s = cpu_ns, 0.0
        self._ticked = now
        if cpu_ns - self._first_ns > self._cpu_limit_ns:
            self.end()
            self._on_overrun()
        elif self._quiet_s >= self._limit_s and not self._waits():
            self.end()
            self._on_stall(self._quiet_s)
