"""The process of kernels of one virtual function: started when its engine asks, ended with the engine.

Kernels that are Python functions run in processes of their programs, which get the channel through the
socket of a helper.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.children.child_output import ChildOutput
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.children.forked import ForkedProcess
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.state.objects import Context

log = logging.getLogger(__name__)

_LEAST_S: Final = 0.2
"""Between two starts: an engine that was taken over may ask all the time."""
_RETRY_S: Final = 1.0
_KILLED_S: Final = 1.0


class KernelsProcess:
    """At most one process. Its channel is the engine's: the supervisor only starts, watches and ends it."""

    def __init__(
        self, reactor: Reactor, name: str, tell: Callable[[link.KernelsStarted, list[int]], None]
    ) -> None:
        self._reactor, self._name, self._tell = reactor, name, tell
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._output: ChildOutput | None = None
        self._pidfd = -1
        self._timer: Timer | None = None
        self._started_at = 0.0

    @property
    def pid(self) -> int:
        """The process; 0 while none runs."""
        return 0 if self._process is None else self._process.pid

    def start(self, helper: str, contexts: Iterable[Context]) -> None:
        """Start a process in the place of any before, and send its channel to the engine, now or soon.

        `helper`: one that this helper of a context forks. The engine's channel is closed if there is none.
        """
        if helper:
            self._send_to(helper, contexts)
        elif self._timer is None:
            wait_s = self._started_at + _LEAST_S - time.monotonic()
            self._timer = self._reactor.after(max(0.0, wait_s), self._start)

    def _send_to(self, helper: str, contexts: Iterable[Context]) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            log.error("%s: no channel to a helper for kernels: %s", self._name, error)
            return  # the engine does not wait for it forever
        with ours, theirs:
            for context in contexts:
                if helper in context.helpers:
                    context.helpers[helper].send(theirs)
            self._tell(link.KernelsStarted(helper=helper), [ours.fileno()])

    def _start(self) -> None:
        self._timer = None
        self._end()
        self._started_at = time.monotonic()
        try:
            started = child_process.start(ChildProgram.KERNELS)
        except (OSError, MemoryError) as error:
            log.error("%s: no process of kernels can be started: %s", self._name, error)
            self._timer = self._reactor.after(_RETRY_S, self._start)
            return
        self._process = started.process
        self._output = ChildOutput(started.output, started.process.pid, self._reactor)
        with started.channel:
            self._output.watch()
            self._pidfd = os.pidfd_open(started.process.pid)
            self._reactor.watch(self._pidfd, self._ended)
            self._tell(link.KernelsStarted(), [started.channel.fileno()])
        log.info("%s: kernels run in process %d", self._name, self.pid)

    def _ended(self) -> None:
        log.info("%s: the process of kernels %d has ended", self._name, self.pid)
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self._pidfd >= 0:
            self._reactor.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
        if self._output is not None:
            self._output.close()
            self._output = None

    def close(self) -> None:
        """End it; harmless when repeated."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._end()
