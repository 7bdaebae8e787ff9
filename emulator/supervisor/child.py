"""A program of ours that the supervisor starts, watches and kills: an engine or a compiler worker."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.messages import Message
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor import child_process
from softnpu.emulator.supervisor.child_process import ChildProgram
from softnpu.emulator.supervisor.outbox import Outbox
from softnpu.emulator.supervisor.reactor import Reactor

_BACKLOG = 200_000  # frames: a restarted engine gets every object of every session at once


class Child:
    """`python -m PROGRAM FD PARENT_PID`, with a channel on FD. The kernel kills it with the supervisor.

    `on_frame(request, body, fds)` is called for every frame, `on_end(how)` once, when the process has ended,
    `on_full(True)` before messages have to wait because it does not read, `on_full(False)` when none waits.
    """

    def __init__(
        self,
        program: ChildProgram,
        reactor: Reactor,
        on_frame: Callable[[int, memoryview, list[int]], None],
        on_end: Callable[[str], None],
        on_full: Callable[[bool], None] = lambda _full: None,
    ) -> None:
        self._reactor = reactor
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_full = on_full
        self.process, ours = child_process.take(program)
        ours.setblocking(False)
        self._channel = Channel(ours)
        self._outbox = Outbox(self._channel, self._watch, _BACKLOG)
        self._pidfd = os.pidfd_open(self.process.pid)
        self._alive = True
        reactor.watch(self._pidfd, self._ended)
        self._watch(False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def full(self) -> bool:
        """Whether messages wait because it does not read."""
        return self._outbox.waiting_bytes > 0

    def post(self, request: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message in order; never waits."""
        if self._alive:
            self._outbox.post(request, message, fds)

    def kill(self) -> None:
        """Send SIGKILL; `on_end` follows once the kernel has ended the process."""
        if self._alive:
            self.process.kill()

    def close(self, timeout_s: float) -> None:
        """End the process without `on_end`: end of channel first, SIGKILL after the time-out."""
        if not self._alive:
            return
        self._release()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _watch(self, full: bool) -> None:
        self._on_full(full)
        self._reactor.watch(self._channel.fileno(), self._read, self._outbox.flush if full else None)

    def _read(self) -> None:
        while self._alive:
            try:
                packet = self._channel.receive()
            except BlockingIOError:
                return
            except Refused as error:
                self.kill()
                self._reactor.unwatch(self._channel.fileno())
                self._finish(f"sent a bad frame: {error}")
                return
            if packet is None:
                # the end itself is reported by the pidfd, when the process is really gone
                self._reactor.unwatch(self._channel.fileno())
                return
            with packet:
                self._on_frame(packet.request, packet.body, packet.take_fds(packet.fd_count))

    def _ended(self) -> None:
        self._read()  # what it sent before it ended
        code = self.process.wait()
        self._finish(f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}")

    def _finish(self, reason: str) -> None:
        if self._alive:
            self._release()
            self.process.wait()
            self._on_end(reason)

    def _release(self) -> None:
        self._alive = False
        self._reactor.unwatch(self._pidfd)
        self._reactor.unwatch(self._channel.fileno())
        self._outbox.close()
        self._channel.close()
        os.close(self._pidfd)
