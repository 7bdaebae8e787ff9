"""Progress and build log of one job: which stage it is in, how far, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

COMPILE_STAGES = {
    "receive": 0.0, "cache": 0.05, "read": 0.1, "shape": 0.25, "check": 0.3, "weights": 0.6, "pack": 0.95,
}  # fmt: skip
"""Stages of a compilation in their order, each with the share of the job that is done when it begins."""

IMPORT_STAGES = {"receive": 0.0, "weights": 0.2, "read": 0.8, "check": 0.95}
"""Stages of an import: weights before the IR, whose errors are meaningless with wrong weights."""

EXPORT_STAGES = {"receive": 0.0, "weights": 0.05, "pack": 0.5}
QUERY_STAGES = {"receive": 0.0, "read": 0.1, "check": 0.4}

Send = Callable[[str, float], None]

_BETWEEN_NS: Final = 20_000_000
"""Between two reports of a stage: each wakes the worker, the daemon, and a thread of the program."""


class Stages:
    """The stages of one job; `send` is called with stage and finished share (0 to 1, never falling)."""

    def __init__(self, send: Send, begins: dict[str, float]) -> None:
        self._send = send
        self._begins = begins
        self._stage = ""
        self._done = 0.0
        self._started_ns = self._reported_ns = time.perf_counter_ns()
        self._lines: list[str] = []
        self._remarks: list[str] = []

    def begin(self, stage: str) -> None:
        """Enter `stage`, which ends the one before it."""
        self._end()
        self._stage = stage
        self._report(self._begins[stage])

    def advance(self, share: float) -> None:
        """Report that `share` (0 to 1) of the current stage is done, unless something was just reported."""
        if time.perf_counter_ns() - self._reported_ns < _BETWEEN_NS:
            return
        begins = self._begins[self._stage]
        later = [begin for begin in self._begins.values() if begin > begins]
        self._report(begins + share * (min(later, default=1.0) - begins))

    def relay(self, stage: str, done: float) -> None:
        """Forward another process's progress of the same job."""
        self._done = max(self._done, done)
        self._send(stage, self._done)

    def note(self, line: str) -> None:
        """Add a line to the build log."""
        self._lines.append(line)

    def remark(self, text: str) -> None:
        """Add text to the end of the build log, as it is, whatever else is logged."""
        self._remarks.append(text)

    def remarks(self) -> str:
        """Return the build log without LOG_LEVEL: remarks only."""
        return "".join(self._remarks)

    def log(self) -> str:
        """Return the build log so far: notes, times in milliseconds, remarks. Ends the current stage."""
        self._end()
        return "".join([*(f"{line}\n" for line in self._lines), *self._remarks])

    def _end(self) -> None:
        now = time.perf_counter_ns()
        if self._stage:
            self._lines.append(f"{self._stage}: {(now - self._started_ns) / 1e6:.1f} ms")
        self._stage, self._started_ns = "", now

    def _report(self, done: float) -> None:
        self._done = max(self._done, min(done, 1.0))
        self._reported_ns = time.perf_counter_ns()
        self._send(self._stage, self._done)
