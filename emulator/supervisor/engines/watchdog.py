"""The watchdog: detects and ends engines and commands without progress.

Long is not hung. What counts as progress:

- The engine answers pings, and nothing runs: idle.
- It answers, and a command runs: the command changes, or other threads than the one that answers use CPU.
- It does not answer: it is inside a command. Any CPU that it uses counts.
- A thread that wants to run counts, and for a while one that waits for a disk: a busy machine is no reason to
  kill.
- While a graph is loaded, a thread that waits for the same part of a file is a hang, whatever else goes on.

Only time observed by the supervisor itself counts, in ticks: a pause of its own is no hang. The limit per
command ends commands that burn CPU forever. Work released by its client, or left by its death, must end soon
in any case: the engine has cancelled it. It must end sooner where only other sessions use the engine.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.children.activity import Activity
from softnpu.emulator.supervisor.engines.queue_states import QueueStates
from softnpu.emulator.supervisor.engines.reset_blame import KillReason
from softnpu.emulator.supervisor.engines.running_submissions import RunningSubmission
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.tuning import Tuning

log = logging.getLogger(__name__)

_LONGEST_PERIOD_S = 0.25
_CPU_NS = 1_000_000
_TICKS_AT_ONCE = 2.0
_LONGEST_DISK_WAITS = 3
_HANGS_OF_OTHERS = 2  # a reset costs others the loading of their images


class WatchedDevice(Protocol):
    """A device as seen by the watchdog.

    `needed`: somebody waits for its engine. `loading`: the engine has a graph to load.
    """

    states: QueueStates

    @property
    def is_ready(self) -> bool: ...
    @property
    def needed(self) -> bool: ...
    @property
    def loading(self) -> bool: ...
    def running_submission(self) -> RunningSubmission | None: ...
    def ping(self, number: int) -> None: ...
    def count(self, word: StatusWord) -> None: ...
    def abort(self, submission: RunningSubmission, info: ErrorInfo) -> None: ...
    def kill_engine(self, reason: KillReason) -> None: ...


class Watchdog:
    """Watches one device's engine. `tdr_ms`: a hang lasts so long; `limit_s`: per command, 0 for none."""

    def __init__(
        self, device: WatchedDevice, reactor: Reactor, tuning: Tuning, tdr_ms: int, limit_s: float
    ) -> None:
        self._device = device
        self._reactor = reactor
        self._hang_s = max(tuning.min_hang_s, tdr_ms / 1000)
        # To start, and to load a graph: both read files.
        self._start_s = max(tuning.min_start_s, self._hang_s)
        self._abort_limit_s = self._hang_s / 2
        self._limit_s = limit_s
        self._period_s = min(_LONGEST_PERIOD_S, self._hang_s / 8)
        self._timer: Timer | None = None
        self._activity: Activity | None = None
        self._ticked = 0.0
        self._sent = 0
        self._quiet_s = 0.0
        self._seen: tuple[object, ...] = ()
        self._cpu_ns = 0
        self._aborted: RunningSubmission | None = None
        self._abort_s = 0.0
        self._let_go_limit_s = max(tuning.let_go_s, self._hang_s)
        self._let_go_to_others_s = min(self._let_go_limit_s, _HANGS_OF_OTHERS * self._hang_s)
        self._given_back: RunningSubmission | None = None
        self._given_back_s = 0.0
        self.loader = 0
        """The thread of the engine that loads images; 0 until it is ready."""
        self._file_waits: dict[int, str] = {}
        self._file_wait_s = 0.0
        self._disk_wait_s = 0.0

    def begin(self, pid: int) -> None:
        """Watch a new engine."""
        self.end()
        self._activity = Activity(pid)
        self._sent, self._quiet_s, self._seen, self._cpu_ns = 0, 0.0, (), 0
        self._aborted, self._given_back, self.loader = None, None, 0
        self._file_waits, self._file_wait_s, self._disk_wait_s = {}, 0.0, 0.0
        self._ticked = time.monotonic()
        self._timer = self._reactor.every(self._period_s, self._tick)

    def end(self) -> None:
        """Stop watching: there is no engine."""
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
        last_ping, others_ns = self._device.states.liveness()
        answered = last_ping == self._sent
        submission = self._device.running_submission()
        if self._progress(activity, answered, others_ns, submission):
            self._quiet_s = self._disk_wait_s = 0.0
        else:
            self._quiet_s += passed
        if answered and self._device.is_ready and self._device.needed:
            self._sent += 1
            self._device.ping(self._sent)
        if self._device.loading and self._hangs_in_file(activity, passed):
            self._device.count(StatusWord.HANGS)
            self._kill(
                None, f"a file of the graph that it loads did not answer for {self._start_s:g} s", True
            )
            return
        self._check(activity, answered, submission, passed)

    def _hangs_in_file(self, activity: Activity, passed: float) -> bool:
        """Whether a thread is stuck on the same part of a file, regardless of the others."""
        waits = activity.file_waits(self.loader) if self.loader else {}
        same = {thread: wait for thread, wait in waits.items() if self._file_waits.get(thread) == wait}
        self._file_wait_s = self._file_wait_s + passed if same else 0.0
        self._file_waits = same or waits
        return self._file_wait_s >= self._start_s

    def _progress(
        self, activity: Activity, answered: bool, others_ns: int, submission: RunningSubmission | None
    ) -> bool:
        ready = self._device.is_ready
        if answered and ready and submission is None and not self._device.loading:
            return True
        inside = not answered or not ready
        cpu_ns = activity.cpu_ns() if inside else others_ns
        seen = (inside, submission and (submission.queue, submission.running))
        if seen == self._seen and abs(cpu_ns - self._cpu_ns) < _CPU_NS:
            return False
        self._seen, self._cpu_ns = seen, cpu_ns
        return True

    def _check(
        self, activity: Activity, answered: bool, submission: RunningSubmission | None, passed: float
    ) -> None:
        if submission is not None and self._holds_on(submission, passed):
            self._device.count(StatusWord.HANGS)
            self._kill(submission, "a command that was given back did not end")
            return
        if self._aborted is not None:
            self._check_aborted(submission, passed)
            return
        if submission is not None and self._overdue(submission):
            self._end(submission, answered, f"one command ran for more than {self._limit_s:g} s")
            return
        limit = self._hang_s
        if not self._device.is_ready or (submission is None and self._device.loading):
            limit = self._start_s
        if self._quiet_s < limit:
            return
        if activity.busy(main_too=not answered):
            self._disk_wait_s = 0.0 if activity.runs() else self._disk_wait_s + self._quiet_s
            if self._disk_wait_s < _LONGEST_DISK_WAITS * self._start_s:
                self._quiet_s = 0.0
                return
        self._device.count(StatusWord.HANGS)
        reason = f"a command made no progress for {self._quiet_s:.1f} s"
        if activity.stopped():
            self._kill(None, "it was stopped")
        elif submission is not None:
            self._end(submission, answered, reason)
        else:
            self._kill(None, f"it made no progress for {self._quiet_s:.1f} s")

    def _holds_on(self, submission: RunningSubmission, passed: float) -> bool:
        """Whether the engine has run released work for too long."""
        before, self._given_back = self._given_back, submission if submission.given_back else None
        same = before is not None and self._given_back is not None and _is_same(before, submission)
        self._given_back_s = self._given_back_s + passed if same else 0.0
        limit_s = self._let_go_to_others_s if submission.left_to_others else self._let_go_limit_s
        return self._given_back_s >= limit_s

    def _overdue(self, submission: RunningSubmission) -> bool:
        if not self._limit_s:
            return False
        return time.monotonic_ns() - submission.running.since_ns > self._limit_s * 1e9

    def _end(self, submission: RunningSubmission, answered: bool, reason: str) -> None:
        """End the command: ask the engine if it answers pings, else kill it."""
        if not answered:
            self._kill(submission, reason)
            return
        self._aborted, self._abort_s = submission, 0.0
        self._device.abort(submission, _error_info(reason))

    def _check_aborted(self, submission: RunningSubmission | None, passed: float) -> None:
        aborted = self._aborted
        assert aborted is not None
        if submission is None or not _is_same(submission, aborted):
            self._aborted, self._quiet_s = None, 0.0
            return
        self._abort_s += passed
        if self._abort_s >= self._abort_limit_s:
            self._kill(aborted, "a command did not end when it was aborted")

    def _kill(self, submission: RunningSubmission | None, reason: str, image: bool = False) -> None:
        self.end()
        self._device.kill_engine(KillReason(_error_info(reason), submission, image))


def _is_same(one: RunningSubmission, other: RunningSubmission) -> bool:
    return one.queue is other.queue and one.running.sequence == other.running.sequence


def _error_info(reason: str) -> ErrorInfo:
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=reason,
        expected="commands that make progress",
        hint="it was ended, with its engine if need be: create a new queue; the daemon's log says more",
    )
