"""The daemon that the clients share: one of this run alone, or one that is there already."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from softnpu.driver import Driver
from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface import endpoint
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.tools.stress.reports import Failure, reports_folder

_END_S = 15.0


class Target:
    """The daemon under stress, and a folder of this run."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self.socket = socket
        self.folder = folder
        self.failures: list[Failure] = []


@contextmanager
def target(socket: Path | None) -> Iterator[Target]:
    """The daemon at `socket`, or one of its own that has ended in order afterwards, if all is well."""
    with _folder() as folder:
        if socket is not None:
            yield Target(socket.absolute(), folder)
            return
        found = Target(folder / "npu.sock", folder)
        # should the director be killed, the daemon ends by itself
        pid = start_background(DaemonSettings(socket=str(found.socket), idle_timeout_s=30.0, self_check=True))
        tree = [psutil.Process(pid)]
        try:
            # it must not end as idle while the references are made, which may take longer
            with Driver.open(found.socket, autostart=False, role="monitor"):
                yield found
        finally:
            found.failures += _end(found, tree)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for a run. It is gone afterwards, unless a client has left a report there."""
    folder = Path(tempfile.mkdtemp(prefix="softnpu-stress-"))
    try:
        yield folder
    finally:
        kept = reports_folder(folder)
        if kept.is_dir():
            for path in folder.iterdir():
                if path.is_dir() and path != kept:
                    shutil.rmtree(path)
        else:
            shutil.rmtree(folder)


def _end(found: Target, tree: list[psutil.Process]) -> list[Failure]:
    """Stops the daemon; what is wrong with its end."""
    failures = []
    daemon = tree[0]
    if not daemon.is_running():
        failures.append(Failure(kind="error", text="the daemon has died"))
    else:
        tree += daemon.children(recursive=True)
        with Driver.open(found.socket, autostart=False, role="monitor") as monitor:
            monitor.stop_daemon()
    _, alive = psutil.wait_procs(tree, timeout=_END_S)
    for process in alive:
        failures.append(Failure(kind="leak", text=f"process {process.pid} lives after the daemon's end"))
        process.kill()
    for path in (found.socket, endpoint.lock_path(found.socket)):
        if path.exists() and not failures:
            failures.append(Failure(kind="leak", text=f"file {path.name} is left by the daemon"))
    log = endpoint.log_path(found.socket).read_text(errors="replace")
    if "Traceback" in log:
        text = log[log.index("Traceback") :][:2000]
        failures.append(Failure(kind="error", text=f"something in the daemon crashed:\n{text}"))
    return failures
