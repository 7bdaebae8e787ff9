"""Progress of a compilation: a bar while it runs, then the times of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from softnpu.tools.shared.console import err, format_time

# The compiler's last stage is followed by loading onto the device, which it does not report.
_LAST = {"pack": "pack, then load"}


class Stages:
    """Takes the reports of `Core.compile_model`; `seconds` has the time of each stage, in order."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("start", total=1.0)
        self._stage = ""
        self._since = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: float) -> None:
        if stage != self._stage:
            self.end()
            self._stage = stage
        self._bar.update(self._task, completed=done, description=_LAST.get(stage, stage))

    def end(self) -> None:
        """End the last reported stage."""
        now = time.perf_counter()
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = "", now

    def __str__(self) -> str:
        return ", ".join(f"{stage} {format_time(taken)}" for stage, taken in self.seconds.items())


@contextmanager
def stages() -> Iterator[Stages]:
    """Show a bar on stderr, if it is visible there."""
    with Progress(
        TextColumn("compile: {task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bar:
        yield Stages(bar)
