"""Reports of problems from clients to the coordinator, and their transport."""

from __future__ import annotations

from pathlib import Path

import msgspec

from softnpu.tools.shared.scratch import REPORTS


def reports_folder(folder: Path) -> Path:
    """Return the folder for clients' failure reports."""
    return folder / REPORTS


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure: `kind` is wrong, hang, error, leak, death or limit; `text` is the full reason.

    For a wrong result `details` has the explanation, and `report` the file with everything.
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

    `incarnation` counts this client's previous processes.
    """

    client: int
    incarnation: int
    step: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all clients. `progress_fd` is a descriptor that the fork server inherits."""

    socket: str
    folder: str
    progress_fd: int
    seed: int
    clients: int
    kill: bool
    faults: bool
