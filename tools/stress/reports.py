"""Reports of clients to the coordinator when something is wrong, and how they travel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from softnpu.tools.shared.scratch import REPORTS


def reports_folder(folder: Path) -> Path:
    """Where clients of a run write reports on failures."""
    return folder / REPORTS


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure: `kind` is wrong, hang, error, leak, death or limit; `text` is the reason in full.

    Of a wrong result `details` has what explains it, and `report` the file that has all of it.
    """

    kind: str
    text: str
    client: int = -1
    step: int = -1
    operation: str = ""
    details: list[str] = []
    report: str = ""

    def __str__(self) -> str:
        where = f"client {self.client}, step {self.step} ({self.operation}): " if self.client >= 0 else ""
        lines = [f"{self.kind}: {where}{self.text}", *self.details]
        if self.report:
            lines.append(f"report: {self.report}")
        return "\n  ".join(lines)


class StartClient(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the fork server: a process for `client`, which continues with `step`.

    `incarnation` counts the processes that this client had before.
    """

    client: int
    incarnation: int
    step: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients have in common. `progress_fd` is a descriptor that the fork server inherits."""

    socket: str
    folder: str
    progress_fd: int
    seed: int
    clients: int
    kill: bool
    faults: bool
