"""External checks of a daemon: no deaths, no effect on other clients, no leaks."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from softnpu.emulator.interface import messages as msg
from tests.fuzz.bystander import Bystander
from tests.fuzz.connection import Connection
from tests.fuzz.report import Violation
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_ANSWER_S = 20.0
_INNOCENT_MS = 5000.0
_SETTLE_S = 30.0
_ENGINE_GROWTH = 96 << 20
_SUPERVISOR_GROWTH = 48 << 20


@dataclass(frozen=True)
class _Level:
    """The daemon's holdings: memory files, descriptors, mappings, threads."""

    memory: int
    sessions: int
    contexts: int
    queues: int
    graphs: int
    images: int
    descriptors: int
    engine_descriptors: int
    segments: int
    threads: int

    def is_within(self, other: _Level) -> bool:
        """Return whether nothing has grown; the bystander may free memory of its first inferences."""
        return all(mine <= its for mine, its in zip(astuple(self), astuple(other), strict=True))


class DaemonChecks:
    """Checks a daemon from outside: `check` after every round, `finish` after all sessions have ended."""

    def __init__(self, daemon: Daemon, bystander: Bystander, at: str = "") -> None:
        self._daemon = daemon
        self._bystander = bystander
        self._at = at
        self._monitor = Connection(daemon.socket)
        self._monitor.hello("checker", "monitor")
        self._monitor.socket.settimeout(_ANSWER_S)
        self._pid = daemon.pid
        self.inferences = 0
        self.last_ms = 0.0
        self._engine = self._status().engines[0].engine_pid
        self._start = self._level()
        self._resident = self._memory()

    def restarts(self) -> int:
        """Count the engine restarts so far."""
        return self._status().engines[0].restarts if self._daemon.alive else -1

    def check(self, restarts: int) -> None:
        """Check that the daemon answers, kept its engine, and gave the bystander right numbers."""
        if not self._daemon.alive:
            raise Violation(f"the daemon died: {self._daemon.log[-1500:]}")
        engine = self._status().engines[0]
        if engine.restarts != restarts:
            raise Violation(f"{engine.restarts - restarts} engines were lost")
        said = self._bystander.ask()
        self.last_ms = said["longest_ms"]
        if said["errors"]:
            raise Violation(f"the bystander: {said['errors']}")
        if said["longest_ms"] > _INNOCENT_MS:
            raise Violation(f"the bystander waited {said['longest_ms']:.0f} ms for one inference")
        if said["count"] <= self.inferences:
            raise Violation("the bystander has done nothing meanwhile")
        self.inferences = said["count"]

    def finish(self) -> None:
        """Check that the daemon holds no more of anything than at the start."""
        if not self._daemon.alive:
            raise Violation("the daemon is dead")
        last: list[_Level] = []

        def back() -> bool:
            last[:] = [self._level()]
            return last[0].is_within(self._start)

        try:
            wait_until(back, _SETTLE_S)
        except AssertionError as error:
            if not last[0].is_within(self._start):
                raise Violation(f"left behind: {last[0]}, at the beginning {self._start}") from error
        supervisor, engine = self._memory()
        if supervisor - self._resident[0] > _SUPERVISOR_GROWTH or engine - self._resident[1] > _ENGINE_GROWTH:
            raise Violation(f"memory has grown: {self._resident} to {(supervisor, engine)} bytes")
        lines = self._daemon.log.splitlines()
        for number, line in enumerate(lines):
            if "Traceback" in line and not self._starved(line):
                raise Violation("something crashed: " + "\n".join(lines[number:])[:2000])

    def close(self) -> None:
        self._monitor.close()

    def _starved(self, line: str) -> bool:
        """Return whether a line is of a compiler worker, which a daemon at a limit may fail to start.

        Without memory, Python ends in the middle of an import with whatever exception comes first.
        """
        return bool(self._at) and line.startswith("[") and not line.startswith(f"[{self._engine}]")

    @property
    def growth(self) -> tuple[int, int]:
        """The growth of supervisor and engine in bytes."""
        now = self._memory()
        return now[0] - self._resident[0], now[1] - self._resident[1]

    def _status(self) -> msg.StatusAnswer:
        answer, _ = self._monitor.ask(msg.Status())
        assert isinstance(answer, msg.StatusAnswer), answer
        return answer

    def _level(self) -> _Level:
        status = self._status()
        engine = status.engines[0]
        maps = Path(f"/proc/{engine.engine_pid}/maps").read_text()
        return _Level(
            engine.memory_used,
            status.session_count,
            engine.contexts,
            engine.queues,
            engine.graphs,
            engine.images,
            self._daemon.base_fd_count(),
            len(os.listdir(f"/proc/{engine.engine_pid}/fd")),
            maps.count("memfd:softnpu-memory") + maps.count("memfd:softnpu-sealed"),
            psutil.Process(self._pid).num_threads(),
        )

    def _memory(self) -> tuple[int, int]:
        engine = self._status().engines[0].engine_pid
        supervisor = psutil.Process(self._pid).memory_full_info()
        return int(supervisor.uss), int(psutil.Process(engine).memory_full_info().uss)
