"""A program's own daemon: in a private folder, ended and removed with the program."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.scratch import in_use

if TYPE_CHECKING:
    import psutil

    from softnpu.driver import Driver

_ORPHANED_S: Final = 5.0
"""Without its keeper the daemon is idle, and ends by itself, even if this process is killed."""
_END_S: Final = 15.0
_LINES_OF_LOG: Final = 3


class Problem(NamedTuple):
    """A problem at the end of a daemon: `kind` is error or leak."""

    kind: str
    text: str


class PrivateDaemon:
    """A running daemon with a socket in `folder`. A keeper's connection keeps it from ending as idle.

    What `settings` do not choose is as variables say, as with every daemon that starts by itself.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        import msgspec

        from softnpu.driver import Driver
        from softnpu.emulator import autostart
        from softnpu.emulator.daemon import start_background
        from softnpu.emulator.interface.result import Refused

        self.folder = folder
        self.socket = folder / "npu.sock"
        as_asked = autostart.settings(str(self.socket))
        self._settings = msgspec.structs.replace(as_asked, idle_timeout_s=_ORPHANED_S, **settings)
        try:
            self.pid = start_background(self._settings)
        except Refused as error:
            # its log goes with its folder
            raise ToolError(
                "private daemon",
                found=f"it did not start: {error.info}",
                expected="a running daemon",
                hint=_last_words(self.socket),
            ) from error
        self._keeper = Driver.open(self.socket, autostart=False, role="keeper")

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` for programs that use this daemon: it asks for no other settings than it has."""
        from softnpu.emulator.supervisor.clients import asked_settings

        return {**base, **asked_settings.corrected(self._settings, base)}

    def stop(self) -> list[Problem]:
        """End the daemon, wait for its last process, and return the problems of its end."""
        import psutil

        from softnpu.driver import ZeError

        problems: list[Problem] = []
        tree = _processes(self.pid)
        if tree:
            with suppress(ZeError):  # it has just ended
                self._keeper.stop_daemon()
        else:
            problems.append(Problem("error", "the daemon has died"))
        _, alive = psutil.wait_procs(tree, timeout=_END_S)
        for process in alive:
            problems.append(Problem("leak", f"process {process.pid} lives after the daemon's end"))
            process.kill()
        self._keeper.destroy()
        if not problems:
            left = files_left(self.socket)
            problems += [Problem("leak", f"file {path.name} is left by the daemon") for path in left]
        if crash := crash_in_log(self.socket):
            problems.append(Problem("error", f"something in the daemon crashed:\n{crash}"))
        return problems


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Disable Ctrl-C inside the block: it would leak the daemon."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def private_daemon(**settings: Any) -> Iterator[PrivateDaemon]:
    """Yield a daemon with these `DaemonSettings`; remove it and its folder after the block.

    Raise `ToolError` for problems at its end.
    """
    with tempfile.TemporaryDirectory(prefix="softnpu-private-") as folder, in_use(Path(folder)):
        daemon = PrivateDaemon(Path(folder), **settings)
        try:
            yield daemon
        finally:
            with _uninterrupted():
                problems = daemon.stop()
        if problems:
            raise ToolError(f"daemon {daemon.pid}", found=problems[0].text, expected="an end in order")


@contextmanager
def private_session(**settings: Any) -> Iterator[Driver]:
    """Yield a session with a private daemon."""
    from softnpu.driver import Driver

    with private_daemon(**settings) as daemon, Driver.open(daemon.socket, autostart=False) as driver:
        yield driver


def files_left(socket: Path) -> list[Path]:
    """Return files that an orderly end would have removed."""
    from softnpu.emulator.interface import endpoint

    return [path for path in (socket, endpoint.lock_path(socket)) if path.exists()]


def crash_in_log(socket: Path) -> str:
    """Return the first traceback in the daemon's log; empty if there is none."""
    from softnpu.emulator.interface import endpoint

    log = endpoint.log_path(socket).read_text(errors="replace")
    return log[log.index("Traceback") :][:2000] if "Traceback" in log else ""


def _last_words(socket: Path) -> str:
    from softnpu.emulator.interface import endpoint

    try:
        lines = endpoint.log_path(socket).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return f"the end of its log: {' | '.join(lines[-_LINES_OF_LOG:])}" if lines else ""


def process_tree(daemon_pid: int) -> dict[int, str]:
    """Return a daemon's processes by pid: supervisor, engines, compiler workers."""
    import psutil

    tree = {daemon_pid: "supervisor"}
    for child in psutil.Process(daemon_pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            tree[child.pid] = "engine" if "softnpu.emulator.engine" in child.cmdline() else "compiler"
    return tree


def _processes(pid: int) -> list[psutil.Process]:
    import psutil

    try:
        supervisor = psutil.Process(pid)
        return [supervisor, *supervisor.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
