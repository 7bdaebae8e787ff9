"""Processes forked from a server with their imports done: a daemon costs an eighth of the CPU time.

Each is a process of its own with its own environment, folder, streams, signals, exit code and command line.
Tests of an interpreter's start, imports or size use `sys.executable` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from socket import send_fds
from typing import IO

import msgspec

from softnpu.tools.shared.fork_server import Child, Exited, ForkServer
from tests.support.leaks import lasting_descriptors, servers
from tests.support.waiting import wait_readable

_ROOT = Path(__file__).parents[2]
_PYTHONPATH = os.environ.get("PYTHONPATH")
_TITLE_SPACE = 4096
_SLICE_S = 0.05  # another thread may have received the awaited message


class ProcessRequest(msgspec.Struct, frozen=True):
    """A request for a process that runs `MODULE:FUNCTION(arguments, descriptors)` and exits with its result.

    Its streams and `descriptors` follow over its connection. `alters_imports`: its children import other
    modules than the tests do, and are fresh interpreters.
    """

    function: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    descriptors: int
    alters_imports: bool = False


class ForkedProcess:
    """A running process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, server: _Server, pid: int, args: Sequence[str]) -> None:
        self._server = server
        self.args = list(args)
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float = 3600.0) -> int:
        """Wait for the exit code."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    function: str,
    *arguments: str,
    streams: Sequence[int],
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> ForkedProcess:
    """Run `MODULE:FUNCTION(arguments, descriptors)` with these streams; the caller keeps its descriptors."""
    variables = {**os.environ, **(environment or {})}
    alters_imports = variables.get("PYTHONPATH") != _PYTHONPATH
    request = ProcessRequest(
        function, arguments, variables, str(Path.cwd()), len(descriptors), alters_imports
    )
    server = _server()
    pid = server.start(msgspec.json.encode(request), [*streams, *descriptors])
    return ForkedProcess(server, pid, [function, *arguments])


class _Server:
    """The fork server of this process, for all its threads."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(_ROOT), *filter(None, [_PYTHONPATH])])
        # CI: OpenVINO sends no telemetry (it would do so from a process that our children would try to join)
        environment = {"PYTHONPATH": path, "CI": "true"}
        title_space = "-" * _TITLE_SPACE
        self._server = ForkServer(
            "tests.support.forked_process:child_function", title_space, environment=environment
        )
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        servers.add(self._server.pid)
        lasting_descriptors.add(os.readlink(f"/proc/self/fd/{self._server.fileno()}"))
        atexit.register(self._server.close)

    def start(self, request: bytes, descriptors: Sequence[int]) -> int:
        """Return the pid of a new process that has the descriptors."""
        with self._lock:
            self._server.request(request)
            while not isinstance(child := self._server.receive(), Child):
                self._note(child)
            self._codes.pop(child.pid, None)
        with contextlib.closing(child):  # a test must not find descriptors of a lasting daemon
            send_fds(child.connection, [b"x"], descriptors)
        return child.pid

    def exit_code(self, pid: int, timeout: float) -> int | None:
        """Wait for the exit code of a process; return None on timeout."""
        end = time.monotonic() + timeout
        while True:
            with self._lock:
                while wait_readable(self._server.fileno(), 0):
                    ended = self._server.receive()
                    assert isinstance(ended, Exited)  # `start` has received every child
                    self._note(ended)
                if pid in self._codes:
                    return self._codes.pop(pid)
            left = end - time.monotonic()
            if left <= 0:
                return None
            wait_readable(self._server.fileno(), min(left, _SLICE_S))

    def _note(self, ended: Exited) -> None:
        self._codes[ended.pid] = os.waitstatus_to_exitcode(ended.status)


@cache
def _server() -> _Server:
    return _Server()
