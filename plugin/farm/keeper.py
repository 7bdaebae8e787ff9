"""The daemon of a Ray node: runs as long as the node, and is restarted when it dies.

python -m softnpu.farm.keeper SETTINGS OWNER    keep a daemon as long as process OWNER lives
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import endpoint
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.farm.errors import FarmError

_READY_S: Final = 300.0
_LOOK_S: Final = 0.02
_END_S: Final = 15.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_SETTLED_S: Final = 10.0
"""A daemon that ran this long was not broken from the start."""


class DaemonKeeper:
    """Runs a daemon in a child process. `close` ends it; it also dies with this process."""

    def __init__(self, settings: DaemonSettings) -> None:
        settings.check()
        self._settings = settings
        self._pause_s = _FIRST_PAUSE_S
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def keep(self, owner: int) -> None:
        """Restart the daemon whenever it exits, until the process of the pidfd `owner` has ended."""
        while True:
            with _pidfd(self._process.pid) as daemon:
                ready, _, _ = select.select([owner, daemon], [], [])
            if owner in ready:
                return
            self._process.wait()
            if select.select([owner], [], [], self._pause())[0]:
                return
            self._start()

    def wait_ready(self) -> None:
        """Wait until the daemon accepts connections. Raises `FarmError` with the end of its log."""
        end = time.monotonic() + _READY_S
        path = Path(self._settings.socket)
        while not endpoint.accepts(path):
            if self._process.poll() is not None or time.monotonic() > end:
                raise FarmError(
                    f"daemon at {path}",
                    found=endpoint.log_path(path).read_text(errors="replace")[-500:].strip() or "not a word",
                    expected=f"one that takes connections within {_READY_S:g} s",
                )
            time.sleep(_LOOK_S)

    def close(self, within_s: float = _END_S) -> None:
        """Shut the daemon down, and wait for it; it is killed after this time."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._began = time.monotonic()
        log = endpoint.log_path(Path(self._settings.socket))
        Path(self._settings.socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [*_PYTHON, "--serve", msgspec.json.encode(self._settings).decode(), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for this process, which would restart it
            )

    def _pause(self) -> float:
        """Back off longer and longer from a daemon that dies at once: it may be broken."""
        settled = time.monotonic() - self._began > _SETTLED_S
        pause = self._pause_s
        self._pause_s = _FIRST_PAUSE_S if settled else min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause


_PYTHON: Final = (sys.executable, "-P", "-m", "softnpu.farm.keeper")


class _pidfd:
    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _serve(settings: DaemonSettings, parent: int) -> int:
    from softnpu.emulator.daemon import configure_logging, serve

    linux.die_with_parent(parent)
    configure_logging(settings.log_level)
    serve(settings)
    return 0


def _keep(settings: DaemonSettings, owner: int) -> int:
    try:
        fd = os.pidfd_open(owner)
    except ProcessLookupError:
        return 0
    keeper = DaemonKeeper(settings)
    # on SIGTERM, end the daemon too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with suppress(KeyboardInterrupt):
            keeper.keep(fd)
    finally:
        keeper.close()
        os.close(fd)
    return 0


def main(arguments: list[str]) -> int:
    """Keep a daemon, or with `--serve` be one."""
    if arguments[0] == "--serve":
        return _serve(msgspec.json.decode(arguments[1], type=DaemonSettings), int(arguments[2]))
    return _keep(msgspec.json.decode(arguments[0], type=DaemonSettings), int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
