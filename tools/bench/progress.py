"""Progress of a run on stderr: which benchmark, how far, how long still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.live import Live
from rich.text import Text

from softnpu.driver.errors import ZeError
from softnpu.tools.bench.result import Measurement
from softnpu.tools.shared.console import err, format_time, print_line
from softnpu.tools.shared.failures import ToolError, describe


class Step(NamedTuple):
    """A benchmark of a run: its seconds on two cores (0: unknown), and what it measures.

    Without the native driver `native` steps are left out: the others need no compiler.
    """

    bench: str
    seconds: float
    run: Callable[[], Iterator[Measurement]]
    native: bool = False


class Progress:
    """How far the steps are. The time still needed is that of the plan, at the pace so far."""

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._clock = clock
        self._at = 0
        self._last = ""
        self._begun = self._step_begun = clock()

    def begin(self, at: int) -> None:
        """Note that a step begins."""
        self._at, self._last, self._step_begun = at, "", self._clock()

    def note(self, row: Measurement) -> None:
        """Note a figure."""
        self._last = f": {row.metric}"

    def __str__(self) -> str:
        step, now = self._steps[self._at], self._clock()
        at = f"{self._at + 1} of {len(self._steps)}, " if len(self._steps) > 1 else ""
        words = f"measuring {at}{step.bench}{self._last}; {format_time(int(now - self._begun))} so far"
        left = self._left_s(now)
        return f"{words}, about {format_time(max(1, round(left)))} left" if left is not None else words

    def __rich__(self) -> Text:
        return Text(str(self), no_wrap=True, overflow="ellipsis")

    def _left_s(self, now: float) -> float | None:
        if not all(step.seconds for step in self._steps):
            return None
        planned = sum(step.seconds for step in self._steps[: self._at])
        pace = (self._step_begun - self._begun) / planned if planned else 1.0
        later = sum(step.seconds for step in self._steps[self._at + 1 :])
        rest = self._steps[self._at].seconds * pace - (now - self._step_begun)
        return max(0.0, rest) + later * pace


def run(steps: Sequence[Step]) -> Iterator[Measurement]:
    """Yield the figures of all steps, with the progress on stderr."""
    progress = Progress(steps)
    with _shown(progress) as live:
        for number, step in enumerate(steps):
            progress.begin(number)
            if not live and len(steps) > 1:
                print_line(str(progress), console=err)
            try:
                for row in step.run():
                    progress.note(row)
                    yield row
            except (ToolError, ZeError) as error:
                if not step.native:
                    raise
                print_line(f"not measured: {step.bench}: {describe(error)}", console=err)


@contextmanager
def _shown(progress: Progress) -> Iterator[bool]:
    """Show the progress in a terminal, once a second: more often would disturb what is measured."""
    if not err.is_terminal:
        yield False
        return
    with Live(progress, console=err, refresh_per_second=1, transient=True):
        yield True
