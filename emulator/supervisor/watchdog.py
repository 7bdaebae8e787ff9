"""Finds engines, and commands on them, that make no progress; ends them.

Long is not hung. What counts as progress:

- The engine answers pings, and nothing runs: idle.
- It answers, and a command runs: the command changes, or other threads than the one that answers use CPU.
- It does not answer: it is inside a command. Any CPU that it uses counts.
- A thread that wants to run or waits for a disk counts: a busy machine is nobody's fault.

Only what the supervisor itself has seen counts, in ticks: after a pause of its own nobody is accused. A
command that burns CPU for ever ends by the limit of one command.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.activity import Activity
from softnpu.emulator.supervisor.objects import Queue
from softnpu.emulator.supervisor.queue_states import Running
from softnpu.emulator.supervisor.reactor import Reactor, Timer

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.device import Device

log = logging.getLogger(__name__)

_LEAST_HANG_S = 1.0
_LEAST_START_S = 10.0  # to start, and to load a graph: both read files
_LONGEST_PERIOD_S = 0.25
_CPU_NS = 1_000_000
_TICKS_AT_ONCE = 2.0


class Verdict(NamedTuple):
    """Why an engine is killed, and whether what runs on it is to blame."""

    info: ErrorInfo
    guilty: bool


class Suspect(NamedTuple):
    """A submission that runs."""

    queue: Queue
    running: Running


class Watchdog:
    """Watches the engine of one device. `hang_s`: without progress; `limit_s`: of one command, 0 for none."""

    def __init__(self, device: Device, reactor: Reactor, tdr_ms: int, limit_s: float) -> None:
        self._device = device
        self._reactor = reactor
        self._hang_s = max(_LEAST_HANG_S, tdr_ms / 1000)
        self._limit_s = limit_s
        self._period_s = min(_LONGEST_PERIOD_S, self._hang_s / 8)
        self._timer: Timer | None = None
        self._activity: Activity | None = None
        self._ticked = 0.0
        self._sent = 0
        self._quiet_s = 0.0
        self._seen: tuple[object, ...] = ()
        self._cpu_ns = 0
        self._aborted: Suspect | None = None
        self._abort_s = 0.0

    def begin(self, pid: int) -> None:
        """A new engine has been started."""
        self.end()
        self._activity = Activity(pid)
        self._sent, self._quiet_s, self._seen, self._cpu_ns = 0, 0.0, (), 0
        self._aborted = None
        self._ticked = time.monotonic()
        self._timer = self._reactor.after(self._period_s, self._tick)

    def end(self) -> None:
        """There is no engine to watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._activity = None

    def _tick(self) -> None:
        activity = self._activity
        if activity is None:
            return
        now = time.monotonic()
        passed = min(now - self._ticked, _TICKS_AT_ONCE * self._period_s)
        self._ticked = now
        self._timer = self._reactor.after(self._period_s, self._tick)
        answered, others_ns = self._device.states.liveness()
        answers = answered == self._sent
        suspect = self._device.suspect()
        if self._progress(activity, answers, others_ns, suspect):
            self._quiet_s = 0.0
        else:
            self._quiet_s += passed
        if answers and self._device.is_ready and self._device.needed:
            self._sent += 1
            self._device.ping(self._sent)
        self._judge(activity, answers, suspect, passed)

    def _progress(self, activity: Activity, answers: bool, others_ns: int, suspect: Suspect | None) -> bool:
        ready = self._device.is_ready
        if answers and ready and suspect is None and not self._device.loading:
            return True
        inside = not answers or not ready
        cpu_ns = activity.cpu_ns() if inside else others_ns
        seen = (inside, suspect and (suspect.queue, suspect.running))
        if seen == self._seen and abs(cpu_ns - self._cpu_ns) < _CPU_NS:
            return False
        self._seen, self._cpu_ns = seen, cpu_ns
        return True

    def _judge(self, activity: Activity, answers: bool, suspect: Suspect | None, passed: float) -> None:
        if self._aborted is not None:
            self._look_at_aborted(suspect, passed)
            return
        if suspect is not None and self._overdue(suspect):
            self._end(suspect, answers, f"one command ran for more than {self._limit_s:g} s")
            return
        limit = self._hang_s
        if not self._device.is_ready or (suspect is None and self._device.loading):
            limit = max(limit, _LEAST_START_S)
        if self._quiet_s < limit:
            return
        if activity.busy(main_too=not answers):
            self._quiet_s = 0.0
            return
        self._device.count(StatusWord.HANGS)
        found = f"a command made no progress for {self._quiet_s:.1f} s"
        if activity.stopped():
            self._kill(None, "it was stopped")
        elif suspect is not None:
            self._end(suspect, answers, found)
        else:
            self._kill(None, f"it made no progress for {self._quiet_s:.1f} s")

    def _overdue(self, suspect: Suspect) -> bool:
        if not self._limit_s:
            return False
        return time.monotonic_ns() - suspect.running.since_ns > self._limit_s * 1e9

    def _end(self, suspect: Suspect, answers: bool, found: str) -> None:
        """Ends the command: by asking the engine if it listens, else with the engine."""
        if not answers:
            self._kill(suspect, found)
            return
        self._aborted, self._abort_s = suspect, 0.0
        self._device.abort(suspect, _fault(found))

    def _look_at_aborted(self, suspect: Suspect | None, passed: float) -> None:
        aborted = self._aborted
        assert aborted is not None
        same = suspect is not None and suspect.queue is aborted.queue
        if not same or suspect is None or suspect.running.sequence != aborted.running.sequence:
            self._aborted, self._quiet_s = None, 0.0
            return
        self._abort_s += passed
        if self._abort_s >= max(_LEAST_HANG_S, self._hang_s) / 2:
            self._kill(aborted, "a command did not end when it was aborted")

    def _kill(self, suspect: Suspect | None, found: str) -> None:
        self._aborted = None
        self._quiet_s = 0.0
        self._device.kill_engine(Verdict(_fault(found), suspect is not None))


def _fault(found: str) -> ErrorInfo:
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=found,
        expected="commands that make progress",
        hint="it was ended, with its engine if need be: create a new queue; the daemon's log says more",
    )
