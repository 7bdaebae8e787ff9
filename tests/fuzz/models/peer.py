"""The director's end of a process that runs cases: it may die or hang, and is restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.models.records import Answer, Died, Job

_ROOT = Path(__file__).parents[3]
_END_S = 10.0
_KILLED_S = 300.0
"""At idle priority a killed process may take long to end."""
_MOST_JOBS = 1500
"""Jobs before a process is replaced: OpenVINO leaks something for every model."""


class Peer:
    """One kind of process, started on first use."""

    def __init__(self, kind: str, environment: Mapping[str, str], log: Path) -> None:
        self.kind = kind
        self.started = 0
        self._environment = dict(environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._jobs = 0

    def send(self, job: Job) -> None:
        """Begin a job; `receive` gets its end."""
        if self._jobs >= _MOST_JOBS:
            self.stop()
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._jobs += 1
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` reports how it died
            self._connection.send(job)

    def receive(self, deadline_s: float) -> Answer | Died:
        """Return the answer to the last job sent."""
        assert self._connection is not None
        try:
            if not self._connection.poll(deadline_s):
                return self._died(hung=f"no answer within {deadline_s:g} s")
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            return self._died()
        return answer

    def ask(self, job: Job, deadline_s: float) -> Answer | Died:
        """Run one job."""
        self.send(job)
        return self.receive(deadline_s)

    def stop(self) -> None:
        """End the process, in order if possible."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_KILLED_S)
        self._connection = self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.fuzz.models.worker",
                    self.kind,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                cwd=_ROOT,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._jobs = 0
        self.started += 1

    def _died(self, hung: str = "") -> Died:
        assert self._process is not None
        if hung:
            self._process.kill()
        code = self._process.wait(_KILLED_S)
        how = hung or (f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        assert self._connection is not None
        self._connection.close()
        self._connection = self._process = None
        return Died(how, bool(hung), self._log.read_text(errors="replace")[-1500:])
