"""What clients tell the director when something is wrong, and how it travels."""

from __future__ import annotations

from pathlib import Path

import msgspec


def reports_folder(folder: Path) -> Path:
    """Where clients of a run leave reports on what they found wrong."""
    return folder / "reports"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: `kind` is wrong, hang, error, leak, death or limit; `text` is the reason in full.

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


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """An order to the nursery: a process for `client`, which goes on at `step`."""

    client: int
    life: int
    step: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the nursery has ended, with a status as `waitpid` tells it."""

    pid: int
    status: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients have in common. `board_fd` is a descriptor that the nursery inherits."""

    socket: str
    folder: str
    board_fd: int
    seed: int
    clients: int
    kill: bool
    faults: bool
    parent: int


class Born(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Start`. Descriptors: the pidfd, and the socket on which the client reports."""

    client: int
    pid: int
