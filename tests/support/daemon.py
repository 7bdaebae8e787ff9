"""A test's own daemon: a child process with its own socket, log and end."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from softnpu.driver import Driver
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.messages import EngineStatus, StatusAnswer
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.tools.shared.private_daemon import crash_in_log, files_left
from tests.support import forked
from tests.support.leaks import base_descriptors_of, descriptors_of, lasting
from tests.support.waiting import DEADLINE_S, wait_gone, wait_readable, wait_until

_PROGRAM = Path(__file__).with_name("daemon_main.py")
_FUNCTION = "tests.support.daemon_main:main"
_START_S = 90.0
_READY = re.compile(rb"ready (\d+)\n")


class DaemonRefused(AssertionError):
    """The daemon did not start; `info` says why."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(str(info))
        self.info = info


class Daemon:
    """A running daemon. `open_files`: its descriptor limit, if not 0.

    `interpreter`: start it and its children as fresh interpreters with minimal imports.
    """

    def __init__(self, settings: DaemonSettings, open_files: int = 0, *, interpreter: bool = False) -> None:
        self.socket = Path(settings.socket)
        self.settings = settings
        self.log_path = endpoint.log_path(self.socket)
        self.tracebacks_expected = False
        read_end, write_end = os.pipe()
        arguments = (msgspec.json.encode(settings).decode(), str(open_files))
        with open(self.log_path, "ab") as output, open(os.devnull, "rb") as nothing:
            streams = nothing.fileno(), output.fileno(), output.fileno()
            self.process: forked.ForkedProcess | subprocess.Popen[bytes]
            if interpreter:
                command = [sys.executable, "-P", str(_PROGRAM), *arguments, str(os.getpid()), str(write_end)]
                self.process = subprocess.Popen(
                    command, pass_fds=(write_end,), stdin=nothing, stdout=output, stderr=output
                )
            else:
                self.process = forked.start(_FUNCTION, *arguments, streams=streams, descriptors=(write_end,))
        os.close(write_end)
        with open(read_end, "rb", buffering=0) as reader:
            self._await_ready(reader.fileno())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def fd_count(self) -> int:
        """The number of open descriptors of the supervisor."""
        return descriptors_of(self.pid)

    def base_fd_count(self) -> int:
        """Count the supervisor's descriptors without its children's: compiler workers come and go."""
        return base_descriptors_of(self.pid)

    def status(self) -> StatusAnswer:
        """Return the daemon's state, through a monitor's connection."""
        with Driver.open(self.socket, autostart=False, role="monitor") as monitor:
            return monitor.status()

    def engine(self, device: int = 0) -> EngineStatus:
        return self.status().engines[device]

    def memory_used(self, device: int = 0) -> int:
        return self.engine(device).memory_used

    def kill_engine(self, device: int = 0) -> int:
        """Wait for the engine, send it SIGKILL, return its pid."""
        pid = wait_until(lambda: self.engine(device).engine_pid, what="an engine to kill")
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
        return pid

    @contextmanager
    def stopped_engine(self, device: int = 0) -> Iterator[None]:
        """Stop the engine once it sleeps: on resuming, it sees everything submitted meanwhile."""
        engine = psutil.Process(self.engine(device).engine_pid)
        wait_until(lambda: engine.status() == psutil.STATUS_SLEEPING, what="an engine without work")
        engine.suspend()
        try:
            yield
        finally:
            engine.resume()

    def counts(self, *names: str, device: int = 0) -> tuple[Any, ...]:
        """Return these fields of a device's status."""
        engine = self.engine(device)
        return tuple(getattr(engine, name) for name in names)

    def wait_restarted(self, restarts: int, device: int = 0) -> None:
        """Wait until the engine has been restarted this many times and is ready."""

        def ready() -> bool:
            engine = self.engine(device)
            return engine.restarts == restarts and engine.state == "ready"

        wait_until(ready, what=f"{restarts} restarts of the engine")

    def stop(self) -> None:
        """Send SIGTERM and assert an orderly end: exit code 0 and no files left."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        assert code == 0, f"the daemon ended with {code}:\n{self.log}"
        assert files_left(self.socket) == [], "an orderly end leaves neither socket nor lock file"

    def kill(self) -> None:
        """Send SIGKILL to the supervisor; engines and workers must die with it."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """Stop the daemon if the test has not done so, and read its log."""
        try:
            if self.process.returncode is None:
                self.stop()
        finally:
            if self.alive:
                self.process.kill()
                self.process.wait(DEADLINE_S)
        if not self.tracebacks_expected:
            assert not crash_in_log(self.socket), f"something in the daemon crashed:\n{self.log}"

    def _await_ready(self, fd: int) -> None:
        answer = b""
        while wait_readable(fd, _START_S):
            part = os.read(fd, 65536)
            answer += part
            if not part:
                break  # not on its message: until it has closed its end it has one more descriptor
        if _READY.fullmatch(answer):
            return
        self.process.kill()
        self.process.wait(DEADLINE_S)
        try:
            raise DaemonRefused(msgspec.json.decode(answer, type=ErrorInfo))
        except msgspec.DecodeError:
            raise AssertionError(f"no daemon within {_START_S:g} s:\n{self.log}") from None


class LastingDaemon:
    """A daemon started on first use, and restarted after a test has broken it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._daemon: Daemon | None = None

    @contextmanager
    def unchanged(self) -> Iterator[Daemon]:
        """Yield the daemon; afterwards assert that it lives, owns nothing and has the same engine."""
        daemon = self._daemon or Daemon(
            DaemonSettings(socket=str(self._folder / "npu.sock"), **self._settings)
        )
        self._daemon = None  # not reused unless it passes
        lasting.add(daemon.pid)
        try:
            pid, descriptors = daemon.engine().engine_pid, daemon.base_fd_count()
            yield daemon
            assert daemon.alive, daemon.log
            assert daemon.engine().engine_pid == pid, f"the engine died:\n{daemon.log}"
            wait_until(lambda: daemon.memory_used() == 0, what="memory given back")
            wait_until(lambda: daemon.base_fd_count() <= descriptors, what="descriptors closed")
            assert not crash_in_log(daemon.socket)
            self._daemon = daemon
        finally:
            if self._daemon is None:
                daemon.kill()

    def end(self) -> None:
        """Stop the daemon and remove its files."""
        if self._daemon is not None:
            self._daemon.close()
        shutil.rmtree(self._folder)


def _limit_with_room(pid: int, room: int) -> int:
    """Return the limit below which so many numbers are free: there may be gaps between those in use."""
    used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in itertools.count() if number not in used)
    return next(itertools.islice(free, room, None))


@contextmanager
def no_descriptors(daemon: Daemon, but: int = 3) -> Iterator[None]:
    """The supervisor has none left meanwhile: `but` in all."""
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    limit = _limit_with_room(daemon.pid, max(0, but - daemon.fd_count))
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (min(but, limit), before[1]))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
