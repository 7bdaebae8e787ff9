"""A daemon of the benchmark's own, on a socket in a temporary directory, gone with the benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from softnpu.driver import Driver
from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US
from softnpu.emulator.supervisor.settings import DaemonSettings

_END_S = 10.0


@contextmanager
def private_daemon(spin_us: int = DEFAULT_SPIN_US) -> Iterator[Path]:
    """The socket of a running daemon with default settings but for `spin_us`; it has ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
        path = Path(folder) / "bench.sock"
        # should the benchmark be killed, the daemon ends by itself
        pid = start_background(DaemonSettings(socket=str(path), spin_us=spin_us, idle_timeout_s=30.0))
        try:
            yield path
        finally:
            _stop(pid)


@contextmanager
def private_session(spin_us: int = DEFAULT_SPIN_US) -> Iterator[Driver]:
    """A session with a daemon of its own."""
    with private_daemon(spin_us) as path, Driver.open(path, autostart=False) as driver:
        yield driver


def process_tree(daemon_pid: int) -> dict[int, str]:
    """The processes of a daemon by pid: supervisor, engines, compiler workers."""
    supervisor = psutil.Process(daemon_pid)
    tree = {daemon_pid: "supervisor"}
    for child in supervisor.children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue  # it has just ended
        tree[child.pid] = "engine" if "softnpu.emulator.engine" in line else "compiler"
    return tree


def _stop(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
        process.terminate()
    except psutil.NoSuchProcess:
        return
    _, alive = psutil.wait_procs(tree, timeout=_END_S)
    for left in alive:
        left.kill()
