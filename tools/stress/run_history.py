"""A log of the run's events, added to clients' reports of wrong results."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from softnpu.emulator.interface.messages import StatusAnswer
from softnpu.tools.stress.failure_report import Event, OtherClient, Report, RunContext
from softnpu.tools.stress.plan import FAULTS, OPERATIONS
from softnpu.tools.stress.progress_page import IDLE, Field, ProgressPage

_KEPT: Final = 200


class RunHistory:
    """The last events of a run."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._engines: dict[int, tuple[int, int]] = {}

    def note(self, what: str) -> None:
        """Note an event now."""
        self._events.append(Event(at_ns=time.monotonic_ns(), what=what))

    def update(self, status: StatusAnswer) -> None:
        """Note engines replaced since the last look."""
        for engine in status.engines:
            index, now = engine.device.index, (engine.engine_pid, engine.restarts)
            before = self._engines.get(index)
            if before is not None and before != now:
                self.note(
                    f"engine {index} was seen to be another: pid {before[0]} with {before[1]} restarts, now"
                    f" {now[0]} with {now[1]} ({engine.state})"
                )
            self._engines[index] = now

    def complete(self, path: Path, progress: ProgressPage) -> None:
        """Add the coordinator's knowledge to a client's report."""
        report = msgspec.json.decode(path.read_bytes(), type=Report)
        report.run = RunContext(
            told_ns=time.monotonic_ns(),
            events=sorted([*self._events, *_injections(progress)], key=lambda event: event.at_ns),
            neighbours=[
                neighbour
                for client in range(len(progress.rows))
                if client != report.client and (neighbour := _other_client(progress, client)) is not None
            ],
        )
        path.write_bytes(report.encode())


def _injections(progress: ProgressPage) -> list[Event]:
    """Return the last fault that each client has injected."""
    return [
        Event(
            at_ns=int(row[Field.FAULT_NS]),
            what=f"client {client} injected '{FAULTS[int(row[Field.FAULT])]}' into its session"
            f" {int(row[Field.SESSION])}",
        )
        for client, row in enumerate(progress.rows)
        if row[Field.FAULT_NS]
    ]


def _other_client(progress: ProgressPage, client: int) -> OtherClient | None:
    row = progress.row(client)
    if not row[Field.PID]:
        return None
    operation = int(row[Field.OPERATION])
    return OtherClient(
        client=client,
        pid=int(row[Field.PID]),
        step=int(row[Field.STEP]),
        operation="" if operation == IDLE else OPERATIONS[operation],
        since_ns=int(row[Field.SINCE_NS]),
    )
