"""The daemon's view of this process's objects, for every driver."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from softnpu.driver import Driver
from softnpu.emulator.interface.messages import StatusAnswer


@dataclass(frozen=True)
class Counts:
    """Numbers of objects in the daemon."""

    contexts: int
    allocations: int
    queues: int
    graphs: int


class Holdings:
    """A monitor's connection to the daemon."""

    def __init__(self, place: Path) -> None:
        self._monitor = Driver.open(place, autostart=False, role="monitor")

    def status(self) -> StatusAnswer:
        """Return the whole daemon's state."""
        return self._monitor.status()

    def count(self) -> Counts:
        """Count what the sessions of this process hold now."""
        mine = [entry for entry in self.status().sessions if entry.pid == os.getpid()]
        return Counts(
            contexts=sum(entry.contexts for entry in mine),
            allocations=sum(entry.allocations for entry in mine),
            queues=sum(entry.queues for entry in mine),
            graphs=sum(entry.graphs for entry in mine),
        )

    def __enter__(self) -> Holdings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._monitor.destroy()
