"""The daemon shared by the clients: this run's own, or an existing one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softnpu.tools.shared.private_daemon import PrivateDaemon
from softnpu.tools.shared.scratch import in_use
from softnpu.tools.stress.reports import Failure, reports_folder


class Target:
    """The daemon under stress, and a folder of this run."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self.socket = socket
        self.folder = folder
        self.failures: list[Failure] = []


@contextmanager
def target(socket: Path | None) -> Iterator[Target]:
    """Yield the daemon at `socket`, or a private one; `failures` has the problems of its end."""
    with _folder() as folder:
        if socket is not None:
            yield Target(socket.absolute(), folder)
            return
        daemon = PrivateDaemon(folder, self_check=True)
        target = Target(daemon.socket, folder)
        try:
            yield target
        finally:
            target.failures += [Failure(kind=problem.kind, text=problem.text) for problem in daemon.stop()]


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder for a run, removed afterwards unless a client has left a report there."""
    folder = Path(tempfile.mkdtemp(prefix="softnpu-stress-"))
    try:
        with in_use(folder):
            yield folder
    finally:
        kept = reports_folder(folder)
        if kept.is_dir():
            for path in folder.iterdir():
                if path.is_dir() and path != kept:
                    shutil.rmtree(path)
        else:
            shutil.rmtree(folder)
