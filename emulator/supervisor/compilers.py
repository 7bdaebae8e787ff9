"""Compiler workers: started when there is work, at most a few at once, ended when idle.

A worker reads untrusted input, so it is a process of its own; a job is cancelled by killing it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from softnpu.emulator.interface.compiling import Compiled, Job, outcome_decoder
from softnpu.emulator.interface.messages import Failed, Progress
from softnpu.emulator.interface.result import Fault, ZeResult
from softnpu.emulator.supervisor.child import Child
from softnpu.emulator.supervisor.reactor import Reactor, Timer

log = logging.getLogger(__name__)

COMPILER_MODULE = "softnpu.driver.compiler"
_WORKERS = max(1, min(4, os.cpu_count() or 1))
_IDLE_S = 10.0


@dataclass
class Compilation:
    """One job and who waits for it. Owns the descriptors of the job until it ends.

    Exactly one of `on_compiled(answer, blob descriptor)` and `on_failed(fault)` is called, unless the
    compilation is abandoned.
    """

    job: Job
    fds: list[int]
    on_progress: Callable[[Progress], None]
    on_compiled: Callable[[Compiled, int], None]
    on_failed: Callable[[Fault], None]
    worker: _Worker | None = None
    ended: bool = False

    def close(self) -> None:
        self.ended = True
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)

    def take_weights(self) -> int | None:
        """The descriptor of the weights, now the caller's; None when the job has none."""
        return self.fds.pop() if self.job.weights is not None else None


class CompilerPool:
    """Hands compilations to workers, in the order in which they came."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: deque[Compilation] = deque()
        self._workers: list[_Worker] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._workers)

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or any(worker.current for worker in self._workers)

    def submit(self, compilation: Compilation) -> None:
        self._waiting.append(compilation)
        self._assign()

    def abandon(self, compilation: Compilation) -> None:
        """Ends a compilation without a word to anybody: its session is gone or asked for it."""
        if compilation.ended:
            return
        if compilation in self._waiting:
            self._waiting.remove(compilation)
        if compilation.worker is not None:
            compilation.worker.current = None
            compilation.worker.kill()
        compilation.close()

    def close(self, timeout_s: float) -> None:
        """Ends all workers; compilations under way are abandoned."""
        for compilation in list(self._waiting):
            self.abandon(compilation)
        for worker in list(self._workers):
            if worker.current is not None:
                self.abandon(worker.current)
            worker.close(timeout_s)
        self._workers.clear()

    def _assign(self) -> None:
        while self._waiting:
            worker = next((worker for worker in self._workers if worker.free), None)
            if worker is None:
                if len(self._workers) >= _WORKERS:
                    return
                worker = _Worker(self._reactor, self._worker_free, self._worker_ended)
                self._workers.append(worker)
            worker.begin(self._waiting.popleft())

    def _worker_free(self) -> None:
        self._assign()

    def _worker_ended(self, worker: _Worker, reason: str) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        compilation = worker.current
        if compilation is not None and not compilation.ended:
            log.warning("compiler %d %s", worker.pid, reason)
            compilation.close()
            compilation.on_failed(
                Fault(
                    result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                    object="compiler worker",
                    found=reason,
                    expected="a compiled model",
                    hint="it may have run out of memory; the daemon's log says more",
                )
            )
        self._assign()


class _Worker:
    """One worker process and the compilation it works on."""

    def __init__(
        self, reactor: Reactor, on_free: Callable[[], None], on_end: Callable[[_Worker, str], None]
    ) -> None:
        self.current: Compilation | None = None
        self._reactor = reactor
        self._on_free = on_free
        self._on_end = on_end
        self._killed = False
        self._jobs = 0
        self._idle: Timer | None = None
        self._child = Child(COMPILER_MODULE, reactor, self._on_frame, lambda reason: on_end(self, reason))

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def free(self) -> bool:
        return self.current is None and not self._killed

    def begin(self, compilation: Compilation) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self.current = compilation
        compilation.worker = self
        self._jobs += 1
        self._child.post(self._jobs, compilation.job, compilation.fds)

    def kill(self) -> None:
        self._killed = True
        self._child.kill()

    def close(self, timeout_s: float) -> None:
        self._child.close(timeout_s)

    def _on_frame(self, request: int, body: memoryview, fds: list[int]) -> None:
        outcome = outcome_decoder.decode(body)
        compilation = self.current
        if compilation is None or request != self._jobs:
            for fd in fds:
                os.close(fd)
            return
        if isinstance(outcome, Progress):
            compilation.on_progress(outcome)
            return
        self.current = None
        self._idle = self._reactor.after(_IDLE_S, self.kill)
        match outcome:
            case Compiled():
                (blob,) = fds
                compilation.on_compiled(outcome, blob)
            case Failed(fault=fault):
                compilation.on_failed(fault)
        compilation.close()
        self._on_free()
