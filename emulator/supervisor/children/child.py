"""Child processes that the supervisor starts, watches and kills: engines and compiler workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.messages import Message
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.bounds import BadMessageError
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.children.child_output import ChildOutput
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.children.outbox import Outbox
from softnpu.emulator.supervisor.internal_errors import is_shortage
from softnpu.emulator.supervisor.reactor import Reactor

_FRAMES_A_ROUND = 256
_ROUND_S = 0.003

_KILLED_S = 3.0  # until one that was killed has ended, also with a lot of memory


class Child:
    """`python -m PROGRAM FD PARENT_PID`, with a channel on FD. The kernel kills it with the supervisor.

    `on_frame(request, body, fds)` is called for every frame, takes descriptors out of the list, and raises
    `BadMessageError` to end the process;
    `on_end(how)` once, when the process has ended; `on_full(True)` before messages are queued because it does
    not read, `on_full(False)` when the queue is empty.
    At most `backlog` messages are queued. `given_up`: it missed messages and is killed; `short`: because of a
    shortage.
    """

    def __init__(
        self,
        program: ChildProgram,
        reactor: Reactor,
        on_frame: Callable[[int, memoryview, list[int]], None],
        on_end: Callable[[str], None],
        on_full: Callable[[bool], None] = lambda _full: None,
        backlog: int = 1000,
    ) -> None:
        self._reactor = reactor
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_full = on_full
        self._backlog = backlog
        self._how = ""
        self.given_up = self.short = self._killed = False
        self._alive = True
        self._pidfd = -1
        started = child_process.take(program)
        try:
            self.process = started.process
            self._output = ChildOutput(started.output, self.process.pid, reactor)
            self._channel = Channel(started.channel)
            self._outbox = Outbox(self._channel, self._watch, backlog)
        except BaseException:
            started.abandon()
            raise
        try:
            started.channel.setblocking(False)
            self._pidfd = os.pidfd_open(self.process.pid)
            reactor.watch(self._pidfd, self._ended)
            self._output.watch()
            self._watch(False)
        except BaseException:
            self.close(0)
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def full(self) -> bool:
        """Whether messages are queued."""
        return self.given_up or self._outbox.waiting_bytes > 0

    @property
    def killed_by_others(self) -> bool:
        """Whether it was killed from outside: by the OOM killer or an operator."""
        return self.process.returncode == -signal.SIGKILL and not self._killed

    @property
    def alive(self) -> bool:
        """Whether its end has not been noticed yet."""
        return self._alive

    def send(self, request: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message in order without blocking. Raises if it cannot be sent; it is then dropped.

        A child that leaves too many unread is killed.
        """
        if not self._alive or self.given_up:
            return
        try:
            self._outbox.post(request, message, fds)
        except BufferError as error:
            self.give_up(str(error), short=True)

    def post(self, request: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message in order; never blocks or raises: a child that cannot be told is killed."""
        try:
            self.send(request, message, fds)
        except Exception as error:  # noqa: BLE001  # whatever it is, the child's state is incomplete
            info = self._reactor.errors.note(error, f"which ends process {self.pid}")
            self.give_up(info.found, is_shortage(error))

    def expect_burst(self) -> None:
        """Queue any number of messages until `end_burst`; after that the limit applies to further ones."""
        self._outbox.limit = sys.maxsize

    def end_burst(self) -> None:
        self._outbox.limit = self._outbox.waiting + self._backlog

    def give_up(self, why: str, short: bool) -> None:
        """Kill it because its state is incomplete; `short` if a shortage is the cause."""
        if self.given_up:
            return
        steps = ExitStack()
        steps.callback(self.kill)
        steps.callback(self._reactor.unwatch, self._channel.fileno())
        steps.callback(self._outbox.close)
        steps.callback(self._on_full, True)  # until it ends it must know that messages are missing
        steps.callback(self._note_missed, why, short)
        steps.close()

    def _note_missed(self, why: str, short: bool) -> None:
        self._how = f"was killed because it could not be told all ({why}), "
        self.given_up, self.short = True, short

    def kill(self) -> None:
        """Send SIGKILL; `on_end` follows once the kernel has ended the process.

        One that waits for a file whose server does not answer may be kept by the kernel for ever. It runs
        nothing any more, so it is taken for ended.
        """
        if self._alive:
            self._killed = True
            self.process.kill()
            self._reactor.after(_KILLED_S, lambda: self._finish("was killed, and hangs in a file system"))

    def close(self, timeout_s: float) -> None:
        """End the process without `on_end`: end of channel first, SIGKILL after the time-out."""
        if not self._alive:
            return
        self._release()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILLED_S)
        self._output.close()

    def _watch(self, full: bool) -> None:
        self._on_full(full)
        self._reactor.watch(self._channel.fileno(), self._read, self._outbox.flush if full else None)

    def _read(self) -> None:
        # a compromised child may send endlessly
        end = time.monotonic() + _ROUND_S
        for _ in range(_FRAMES_A_ROUND):
            if not self._read_one() or time.monotonic() > end:
                return

    def _read_one(self) -> bool:
        """Read a frame, if there is a relevant one; return whether there may be another."""
        if not self._alive or self.given_up:
            return False
        try:
            packet = self._channel.receive()
        except BlockingIOError:
            return False
        except MemoryError:
            self._reactor.pause(self._channel.fileno())
            return False
        except Refused as error:
            self._stop(f"sent a bad frame: {error}")
            return False
        if packet is None:
            # the end itself is reported by the pidfd, when the process is really gone
            self._reactor.unwatch(self._channel.fileno())
            return False
        with packet:
            fds = packet.take_fds(packet.fd_count)
            try:
                self._on_frame(packet.request, packet.body, fds)
            except BadMessageError as error:
                self._stop(f"sent a bad message: {error}")
                return False
            finally:
                close_untrusted(fds)  # what was not taken
        return True

    def _stop(self, why: str) -> None:
        """Kill it: it violates the protocol."""
        self.kill()
        self._reactor.unwatch(self._channel.fileno())
        self._finish(why)

    def _ended(self) -> None:
        while self._read_one():  # frames sent before its end
            continue
        code = self.process.wait()
        self._finish(f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}")

    def _finish(self, reason: str) -> None:
        if self._alive:
            steps = ExitStack()  # called by `close`, the last one first: all of them, whatever one raises
            steps.callback(self._on_end, self._how + reason)
            steps.callback(self._output.close)
            steps.callback(self._reap)
            steps.callback(self._release)
            steps.close()

    def _reap(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0)

    def _release(self) -> None:
        self._alive = False
        self._reactor.unwatch(self._pidfd)
        self._reactor.unwatch(self._channel.fileno())
        self._outbox.close()
        self._channel.discard()
        if self._pidfd >= 0:
            os.close(self._pidfd)
