"""The pool of compiler workers: a few at most, one always ready, the others ended when idle.

A worker reads untrusted input, so it is a process of its own; a job is cancelled by killing it.

Starting Python costs more than a compilation answered from the cache. So one idle worker, the spare, is kept
ready: it is small, because a worker loads OpenVINO only for the first job that needs it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec

import msgspec

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.messages import Failed, Progress
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import bounds
from softnpu.emulator.links.compiler import Job, Result, Started, lengths_of, worker_decoder
from softnpu.emulator.supervisor.children.activity import StallWatch
from softnpu.emulator.supervisor.children.child import Child
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.compilers.stage_trace import StageTrace
from softnpu.emulator.supervisor.limits import OPTION
from softnpu.emulator.supervisor.parked_files import borrowed
from softnpu.emulator.supervisor.reactor import ChildShare, Reactor, Timer
from softnpu.emulator.supervisor.tuning import Tuning
from softnpu.emulator.supervisor.undoing import move
from softnpu.emulator.supervisor.users import FunctionKey

log = logging.getLogger(__name__)

P = ParamSpec("P")

_LONGEST_PAUSE_S = 60.0
_NOBODY = FunctionKey(0)
_NO_PROGRESS = Progress(stage="", done=0.0)


class Compilation(msgspec.Struct):
    """One job and what happens at its end. Owns the parked descriptors of the job until then.

    `on_done(answer, descriptors)`, which takes descriptors of the answer out of the list, or
    `on_failed(error)` is called, unless the compilation is abandoned; the first call counts. `owner`: user
    and session. `function`: a worker that has served one never serves another.
    `worker_signal`: an injected fault for the worker that starts it. `device` -1: none.
    `progress`: its worker's last report. `asked`: time of the request, by `time.monotonic`.
    """

    job: Job
    fds: list[int]
    on_progress: Callable[[Progress], None]
    on_done: Callable[[Result, list[int]], None]
    on_failed: Callable[[ErrorInfo], None]
    owner: tuple[int, int] = (0, 0)
    function: FunctionKey = _NOBODY
    worker_signal: int = 0
    device: int = -1
    progress: Progress = _NO_PROGRESS
    asked: float = msgspec.field(default_factory=time.monotonic)
    worker: _Worker | None = None
    attempts: int = 0
    ended: bool = False

    def close(self) -> None:
        self.ended = True
        fds, self.fds = self.fds, []
        close_untrusted(fds, self.owner[0])

    def give_fds(self, count: int, into: list[int]) -> None:
        """Move the last `count` descriptors of the job to `into`."""
        move(self.fds, into, len(self.fds) - count)

    def fail(
        self,
        found: str,
        expected: str = "a compiled model",
        hint: str = "it may have run out of memory; the daemon's log says more",
    ) -> None:
        """Fail it because its worker died, or because of what is `found`."""
        self.close()
        self.on_failed(
            ErrorInfo(
                result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                object="compiler worker",
                found=found,
                expected=expected,
                hint=hint,
            )
        )


class CompilerPool:
    """Assigns compilations to workers in fair turns.

    The user, then the session, with the fewest running and the longest time since its last turn goes first;
    otherwise jobs are served in order of request. If one user occupies all workers, a job of another need not
    wait: one extra worker is allowed for it. A worker belongs to the virtual function of its first job.
    """

    def __init__(self, reactor: Reactor, tuning: Tuning, cpu_limit_s: float) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._reactor = reactor
        self._tuning = tuning
        self._waiting: deque[Compilation] = deque()
        self._turns: dict[tuple[int, int], int] = {}  # of those waiting, and of the last
        self._next_turn = 1
        self._workers: list[_Worker] = []
        self._spare = _Spare(reactor, tuning, self._start_spare)

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of workers that have had a job, which excludes the spare."""
        return tuple(worker.pid for worker in self._workers if worker.jobs)

    def compilations(self) -> list[Compilation]:
        """Return the compilations in progress, the oldest first."""
        at_work = [worker.current for worker in self._workers if worker.current is not None]
        return sorted((*at_work, *self._waiting), key=lambda compilation: compilation.asked)

    def start(self) -> None:
        """Start the spare, before the first client connects."""
        self._spare.start()

    def submit(self, compilation: Compilation) -> None:
        self._waiting.append(compilation)
        self._assign()

    def abandon(self, compilation: Compilation) -> None:
        """End a compilation without an answer: its session is gone or has cancelled it."""
        if compilation.ended:
            return
        steps = ExitStack()  # called by `close`, the last one first: all of them, whatever one raises
        steps.callback(compilation.close)
        if compilation in self._waiting:
            steps.callback(self._waiting.remove, compilation)
        if compilation.worker is not None:
            steps.callback(compilation.worker.kill)
            compilation.worker.current = None
        steps.close()

    def close(self, timeout_s: float) -> None:
        """End all workers; compilations in progress are abandoned."""
        self._spare.close()
        for compilation in list(self._waiting):
            self.abandon(compilation)
        for worker in list(self._workers):
            if worker.current is not None:
                self.abandon(worker.current)
            worker.close(timeout_s)
        self._workers.clear()

    def _assign(self) -> None:
        while self._waiting:
            chosen = self._next()
            if chosen.ended:
                self._waiting.remove(chosen)
                continue
            worker = self._worker_for(chosen)
            if worker is None:
                break
            worker.guarded(self._give)(worker, chosen)
        if self._spare_missing():
            self._spare.wanted()

    def _next(self) -> Compilation:
        if len(self._waiting) == 1:
            return self._waiting[0]
        at_work = [worker.current.owner for worker in self._workers if worker.current is not None]
        users = [uid for uid, _ in at_work]
        turns = self._turns
        turns_of_users: dict[int, int] = {}
        for (uid, _), turn in turns.items():
            turns_of_users[uid] = max(turn, turns_of_users.get(uid, 0))

        def precedence(compilation: Compilation) -> tuple[int, int, int, int]:
            owner = compilation.owner
            user = users.count(owner[0]), turns_of_users.get(owner[0], 0)
            return *user, at_work.count(owner), turns.get(owner, 0)

        return min(self._waiting, key=precedence)

    def _give(self, worker: _Worker, chosen: Compilation) -> None:
        worker.current = chosen  # responsible for its answer from now on
        self._take(chosen)
        worker.begin(chosen)

    def _take(self, chosen: Compilation) -> None:
        self._waiting.remove(chosen)
        if not self._waiting:
            return
        turns = self._turns
        self._turns = {entry.owner: turns[entry.owner] for entry in self._waiting if entry.owner in turns}
        self._turns[chosen.owner] = self._next_turn
        self._next_turn += 1

    def _worker_for(self, compilation: Compilation) -> _Worker | None:
        """Return a worker for this job: one of the same function, else the spare, else a new one."""
        mine = [worker for worker in self._workers if worker.suits(compilation.function)]
        if mine:
            return max(mine, key=lambda worker: worker.jobs)
        if len(self._workers) >= self._tuning.compilers:
            # one that is idle, for another: its end comes back here
            idle = next((worker for worker in self._workers if worker.free), None)
            if idle is not None:
                idle.kill()
            if any(worker.killed for worker in self._workers) or not self._may_exceed(compilation):
                return None
        try:
            return self._start()
        except (OSError, MemoryError) as error:
            log.error("no compiler worker could be started: %s", error)
            # without any worker there is none whose end would bring the jobs back here
            while self._waiting and not self._workers:
                self._waiting.popleft().fail(f"could not be started: {error}")
            return None

    def _may_exceed(self, compilation: Compilation) -> bool:
        """Whether an extra worker is allowed: the user has none at work, and another has them all."""
        users = {worker.current.owner[0] for worker in self._workers if worker.current is not None}
        return len(self._workers) == self._tuning.compilers and compilation.owner[0] not in users

    def _spare_missing(self) -> bool:
        return len(self._workers) < self._tuning.compilers and not any(
            worker.free for worker in self._workers
        )

    def _start_spare(self) -> None:
        if self._spare_missing():
            self._start()

    def _start(self) -> _Worker:
        self._workers.append(
            worker := _Worker(
                self._reactor, self._tuning, self._cpu_limit_s, self._assign, self._worker_ended
            )
        )
        return worker

    def _worker_ended(self, worker: _Worker, reason: str) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            if worker.has_answered:
                self._spare.works()
            elif not worker.killed:
                self._spare.failed(f"compiler {worker.pid} {reason} before it did anything")
            compilation = worker.current
            if compilation is not None and not compilation.ended:
                self._retry(compilation, worker, reason)
            worker.current = None
        self._assign()

    def _retry(self, compilation: Compilation, worker: _Worker, reason: str) -> None:
        compilation.worker = None
        # each worker may be dead without our knowing
        if not worker.began and compilation.attempts <= self._tuning.compilers:
            # it may have died before it received the job, which is then not to blame
            self._waiting.appendleft(compilation)
            return
        log.warning("compiler %d %s", worker.pid, reason)
        if worker.overran:
            most = f"{self._cpu_limit_s:g} s"
            hint = f"compile a smaller model, or start the daemon with a larger {OPTION} job-cpu-s"
            compilation.fail(f"more than {most} of CPU time for one job", f"at most {most}", hint)
        else:
            compilation.fail(reason)


class _Spare:
    """Schedules the next spare: soon, with a growing delay while workers die before doing anything.

    Soon rather than at once: on two cores a starting process made a concurrent compilation half as slow
    again, and a job answered from the cache ends first, so that its worker is free again.
    Only the first death logs a warning: the reason is most likely the same until one worker works.
    """

    def __init__(self, reactor: Reactor, tuning: Tuning, start: Callable[[], None]) -> None:
        self._reactor = reactor
        self._tuning = tuning
        self._start = start
        self._pause_s = 0.0
        self._timer: Timer | None = None

    def wanted(self) -> None:
        """Schedule the start of the spare; harmless when repeated."""
        if self._timer is None:
            self._timer = self._reactor.after(max(self._tuning.spare_delay_s, self._pause_s), self.start)

    def works(self) -> None:
        """Record that a worker has done something: reset the delay."""
        self._pause_s = 0.0

    def failed(self, reason: str) -> None:
        level = logging.DEBUG if self._pause_s else logging.WARNING
        self._pause_s = min(max(2 * self._pause_s, self._tuning.spare_retry_s), _LONGEST_PAUSE_S)
        log.log(level, "%s; the next spare is started in %g s", reason, self._pause_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def start(self) -> None:
        """Start it now, or later if that fails."""
        self._timer = None
        try:
            self._start()
        except OSError as error:
            self.failed(f"no compiler worker could be started: {error}")
            self.wanted()


class _Worker:
    """One worker process and the compilation it works on.

    `jobs` counts its jobs; `has_answered`: it has sent a frame for any job, `began`: for this one.
    """

    def __init__(
        self,
        reactor: Reactor,
        tuning: Tuning,
        cpu_limit_s: float,
        on_free: Callable[[], None],
        on_end: Callable[[_Worker, str], None],
    ) -> None:
        self.current: Compilation | None = None
        self.jobs = 0
        self.has_answered = False
        self.began = False
        self.killed = False
        self.overran = False
        self._function: FunctionKey | None = None
        self._reactor = reactor = reactor.owned(
            "which ends a compiler worker", self._broken, ChildShare(self)
        )
        self._on_free = on_free
        self._idle_s = tuning.compiler_idle_s
        self._idle: Timer | None = None
        self._stalled = ""
        self._stages: StageTrace | None = None
        self._on_end = on_end
        self._child = Child(ChildProgram.COMPILER, reactor, self._on_frame, self._ended)
        try:
            self._watch = StallWatch(
                reactor, self._child.pid, tuning.compiler_stall_s, cpu_limit_s, self._stall, self._overrun
            )
        except BaseException:
            self._child.close(0.0)
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def free(self) -> bool:
        return self.current is None and not self.killed

    def suits(self, function: FunctionKey) -> bool:
        """Whether it can begin a job of this function."""
        return self.free and self._function in (None, function)

    def guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """Wrap `call`: an error ends the worker and fails its job."""
        return self._reactor.guarded(call)

    def begin(self, compilation: Compilation) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._function = compilation.function
        compilation.worker = self
        compilation.attempts += 1
        self.jobs += 1
        self.began = False
        self._watch.begin()
        if trace.active is not None:
            self._stages = StageTrace(self.pid, compilation.owner[1], compilation.job.tag)
        try:
            with borrowed(compilation.fds, compilation.owner[0]) as fds:
                self._child.post(self.jobs, compilation.job, fds)
        except OSError as error:  # no descriptors are left: it is tried again, a few times
            log.error("compiler %d cannot be given a job: %s", self.pid, error)
            self.kill()
        if compilation.worker_signal:
            os.kill(self.pid, compilation.worker_signal)

    def kill(self) -> None:
        self.killed = True
        self._child.kill()

    def close(self, timeout_s: float) -> None:
        self._watch.end()
        self._child.close(timeout_s)

    def _broken(self, info: ErrorInfo) -> None:
        """End it after an internal error, and fail its job."""
        with ExitStack() as steps:
            compilation, self.current = self.current, None
            if self._child.alive:
                steps.callback(self.kill)
            else:  # in its end
                steps.callback(self._on_end, self, info.found)
            if compilation is not None and not compilation.ended:
                steps.callback(compilation.on_failed, info)
                steps.callback(compilation.close)

    def _stall(self, quiet_s: float) -> None:
        self._stalled = f"made no progress for {quiet_s:.0f} s and "
        self.began = True  # not retried: the next worker would hang as well
        self.kill()

    def _overrun(self) -> None:
        self.overran = self.began = True
        self.kill()

    def _ended(self, reason: str) -> None:
        self._watch.end()
        self._end_stages(ZeResult.ERROR_MODULE_BUILD_FAILURE, self._stalled + reason)
        self._on_end(self, self._stalled + reason)

    def _end_stages(self, result: int, how: str = "") -> None:
        stages, self._stages = self._stages, None
        if stages is not None:
            stages.end(result, how)

    def _on_frame(self, request: int, body: memoryview, fds: list[int]) -> None:
        outcome = bounds.decode(worker_decoder, body)
        if isinstance(outcome, Started) and not request:
            self._watch.join(outcome.pid)
            return
        compilation = self.current
        if compilation is None or request != self.jobs:
            close_untrusted(fds)
            fds.clear()
            return
        if isinstance(outcome, Started):
            self._watch.follow(outcome.pid)
            return
        bounds.check_files(fds, lengths_of(outcome, compilation.job))
        self.has_answered = self.began = True
        if isinstance(outcome, Progress):
            compilation.progress = outcome
            if self._stages is not None:
                self._stages.reached(outcome.stage)
            compilation.on_progress(outcome)
            return
        if isinstance(outcome, Failed):
            compilation.on_failed(outcome.info)
        else:
            compilation.on_done(outcome, fds)
        compilation.close()
        self.current = None  # cleared only after the answer, or nobody would give it
        self._watch.end()
        self._idle = self._reactor.after(self._idle_s, self.kill)
        self._end_stages(int(outcome.info.result) if isinstance(outcome, Failed) else 0)
        self._on_free()
