"""The stages of one job of a compiler worker, for a trace."""

from __future__ import annotations

import time

from softnpu.emulator.interface import trace
from softnpu.emulator.interface.trace import TraceKind


class StageTrace:
    """Writes a record when a stage ends, and one for the job when that ends. `session`: whose job it is."""

    def __init__(self, worker: int, session: int, job: str) -> None:
        self._worker = worker
        self._session = session
        self._job = job
        self._stage = ""
        self._begun = self._reached = time.monotonic_ns()

    def reached(self, stage: str) -> None:
        """Record the start of a stage."""
        if stage == self._stage:
            return
        now = time.monotonic_ns()
        self._write(self._stage, self._reached, now)
        self._stage, self._reached = stage, now

    def end(self, result: int, how: str = "") -> None:
        """Record the end of the job: its result, and `how` if it was ended."""
        now = time.monotonic_ns()
        self._write(self._stage, self._reached, now)
        self._write(f"{self._job} ({how})" if how else self._job, self._begun, now, result)

    def _write(self, name: str, started: int, now: int, result: int = 0) -> None:
        writer = trace.active
        if writer is not None and name:
            writer.write(
                TraceKind.STAGE,
                writer.name(name),
                started,
                now - started,
                first=self._session,
                result=result,
                thread=self._worker,
            )
