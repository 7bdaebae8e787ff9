"""The whole run: starts clients, kills processes, monitors the daemon throughout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from softnpu.driver import Driver, faults
from softnpu.emulator.interface.messages import StatusAnswer
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.stress import daemon_usage
from softnpu.tools.stress.client_pool import CLIENT, ClientPool
from softnpu.tools.stress.daemon import Target
from softnpu.tools.stress.daemon_usage import Sample
from softnpu.tools.stress.plan import Plan
from softnpu.tools.stress.progress_page import Field
from softnpu.tools.stress.reclaim_latency import Deaths
from softnpu.tools.stress.reports import Failure
from softnpu.tools.stress.run_history import RunHistory
from softnpu.tools.stress.workloads import Workload, read_list

_TICK_S = 0.25
_SAMPLE_S = 1.0
_ASK_S = 0.004
_LATE_S = 2.0
_END_S = 90.0
_SETTLE_S = 10.0
_REST_S = 1.0
"""Between two engine kills: two engine deaths under one command would poison it, which is not intended."""
_REFERENCES_S = 600.0
_HANGING = tuple(f"fault {kind}" for kind in ("hang", "stall", "drop-signal", "reset", "drop-doorbell"))


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options."""

    clients: int
    seconds: float
    kill: bool
    faults: bool
    seed: int
    models: tuple[str, ...] = ()


class Counts(msgspec.Struct, kw_only=True):
    """What a run has done so far; `operations` are those that ended well, by name."""

    models: list[str]
    operations: dict[str, int] = {}
    results_checked: int = 0
    compilations_excused: int = 0
    processes: int = 0
    client_deaths: int = 0
    engine_kills: int = 0
    compiler_kills: int = 0
    engine_resets: int = 0
    hangs: int = 0
    aborted: int = 0
    overlapped: int = 0
    failures: list[Failure] = []
    samples: list[Sample] = []

    @property
    def done(self) -> int:
        """The number of operations."""
        return sum(self.operations.values())


class State(Counts, kw_only=True):
    """The run so far, for view and result. Times in seconds."""

    options: Options
    elapsed: float = 0.0
    phase: str = "start"
    running: int = 0


def make_references(folder: Path, seed: int, models: Sequence[str]) -> list[Workload]:
    """Make models and expected results in a process that has OpenVINO. Raise `ToolError`."""
    command = [sys.executable, "-P", "-m", "softnpu.tools.stress.references", str(folder), str(seed), *models]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_REFERENCES_S, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ToolError(
            f"model {', '.join(models)}" if models else "models",
            found=lines[-1] if lines else f"exit code {done.returncode}",
            expected="models that OpenVINO's CPU device computes",
        )
    return read_list(folder)


class Coordinator:
    """One run against one daemon. `run` ends when time is up and all clients have ended.

    `client`: see `ClientPool`.
    """

    def __init__(
        self, options: Options, target: Target, show: Callable[[State], None], client: str = CLIENT
    ) -> None:
        self._options = options
        self._client = client
        self._target = target
        self._show = show
        self._deaths = Deaths()
        self._history = RunHistory()
        workloads = make_references(target.folder, options.seed, options.models)
        self._plan = Plan(options.seed, options.clients, len(workloads), options.kill, options.faults)
        self.state = State(options=options, models=[workload.name for workload in workloads])
        self._engine_due = self._plan.pause(0)
        self._compiler_due = self._plan.compiler_pause(0)
        self._ready_since = 0.0

    @property
    def deaths(self) -> Deaths:
        """The latency of noticing deaths."""
        return self._deaths

    def run(self) -> None:
        """Do the whole run; `state` has its results."""
        with (
            Driver.open(self._target.socket, autostart=False, role="monitor") as monitor,
            ClientPool(
                self._plan, self._target.socket, self._target.folder, self._history, self._client
            ) as pool,
        ):
            self._monitor, self._pool = monitor, pool
            if self._options.faults:
                # the daemon creates its injection counters at the first injection, and keeps them
                faults.clear([faults.inject("slow", socket=self._target.socket)], self._target.socket)
            before = self._settled_sample(lambda sample: sample is not None)
            self._observe()
            start = self._start = time.monotonic()
            pool.start()
            self._phase("run", lambda: time.monotonic() - start >= self._options.seconds)
            pool.stop()
            end = time.monotonic()
            self._phase("stop", lambda: not pool.running or time.monotonic() - end > _END_S)
            if pool.running:
                late = f"{pool.running} clients have not ended {_END_S:g} s after they were asked to"
                self._fail("hang", f"{late}\n{pool.places()}")
            self.state.phase = "accounts"
            self._check_left(before)
            self._update_state(self._status())

    # ------------------------------------------------------------

    def _phase(self, name: str, over: Callable[[], bool]) -> None:
        state, pool = self.state, self._pool
        state.phase = name
        shown = sampled = 0.0
        while not over() and len(pool.failures) < 50:
            for process in pool.poll(_ASK_S if self._deaths.pending else _TICK_S):
                session = int(pool.progress.row(process.client)[Field.SESSION])
                self._deaths.note(process.client, process.pid, session, time.monotonic())
            now = time.monotonic()
            status = None
            if self._deaths.pending:
                status = self._observe()
                for text in self._deaths.overdue(time.monotonic()):
                    self._fail("limit", text)
                if self._deaths.pending and now - max(sampled, shown) < _LATE_S:
                    continue  # time taken here would count as the daemon's
            if now - sampled >= _SAMPLE_S:
                sampled, status = now, status or self._observe()
                sample = daemon_usage.measure(status, now - self._start, state.done)
                if sample is not None:
                    state.samples.append(sample)
            if now - shown >= _TICK_S:
                shown, status = now, status or self._observe()
                self._update_state(status)
                pool.kill_hanging()
                if name == "run" and self._options.kill:
                    self._kill(status, now)
                self._show(state)

    def _kill(self, status: StatusAnswer, now: float) -> None:
        """Kill the engine and a compiler worker when due."""
        state = self.state
        ready = all(engine.state == "ready" for engine in status.engines)
        self._ready_since = self._ready_since or now if ready else 0.0
        if state.done >= self._engine_due and ready and now - self._ready_since >= _REST_S:
            engine = status.engines[state.engine_kills % len(status.engines)]
            state.engine_kills += 1
            self._ready_since = 0.0
            self._engine_due = state.done + self._plan.pause(state.engine_kills)
            self._history.note(f"engine {engine.device.index} (pid {engine.engine_pid}) is killed")
            _kill_process(engine.engine_pid)
        if state.done >= self._compiler_due and status.compiler_pids:
            state.compiler_kills += 1
            self._compiler_due = state.done + self._plan.compiler_pause(state.compiler_kills)
            self._pool.note_compiler_kill()
            self._history.note(f"compiler worker (pid {status.compiler_pids[0]}) is killed")
            _kill_process(status.compiler_pids[0])
            # also for clients that began between the first note and the kill
            self._pool.note_compiler_kill()

    def _update_state(self, status: StatusAnswer) -> None:
        state, pool = self.state, self._pool
        state.elapsed = time.monotonic() - self._start
        state.operations = pool.progress.done()
        state.results_checked = pool.progress.total(Field.CHECKED)
        state.compilations_excused = pool.progress.total(Field.EXCUSED)
        state.processes, state.running = pool.started, pool.running
        state.client_deaths = pool.planned_deaths
        state.failures = [*pool.failures]
        state.engine_resets = sum(engine.restarts for engine in status.engines)
        state.hangs = sum(engine.hangs for engine in status.engines)
        state.aborted = sum(engine.aborted for engine in status.engines)
        state.overlapped = sum(engine.overlapped for engine in status.engines)

    def _check_left(self, before: Sample) -> None:
        """Check that the daemon holds nothing after the last client."""

        def clean(sample: Sample | None) -> bool:
            return sample is not None and not _leaks(before, sample)

        after = self._settled_sample(clean)
        for text in _leaks(before, after):
            self._fail("leak", text)

    def _settled_sample(self, good: Callable[[Sample | None], bool]) -> Sample:
        """Return the first sample accepted by `good`; after a while any sample."""
        end = time.monotonic() + _SETTLE_S
        while True:
            sample = daemon_usage.measure(self._status(), 0.0, 0)
            if good(sample) or (sample is not None and time.monotonic() > end):
                assert sample is not None
                return sample
            if time.monotonic() > end + _SETTLE_S:
                raise ToolError("daemon", found="no engine", expected="an engine that is ready")
            time.sleep(0.1)  # the daemon's children end without notifying us

    def _observe(self) -> StatusAnswer:
        """Query the daemon, also about dead clients."""
        status = self._status()
        self._history.update(status)
        self._deaths.update(status, time.monotonic(), self._pool.progress.any_at(_HANGING))
        return status

    def _status(self) -> StatusAnswer:
        return self._monitor.status()

    def _fail(self, kind: str, text: str) -> None:
        self._pool.failures.append(Failure(kind=kind, text=text))


def _leaks(before: Sample, after: Sample) -> list[str]:
    leaks = []
    for what in ("sessions", "device_memory", "orphaned", "descriptors", "threads"):
        early, late = getattr(before, what), getattr(after, what)
        if late > early:
            leaks.append(f"{what.replace('_', ' ')} of the daemon: {early} before, {late} when all had ended")
    return leaks


def _kill_process(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, signal.SIGKILL)
