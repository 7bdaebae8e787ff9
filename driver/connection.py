"""The control connection of a process: requests and answers, from any number of threads.

No thread of its own: of the threads that wait for answers one reads the socket for all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from softnpu.driver.errors import ZeError, error
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

A = TypeVar("A", bound=msg.Message)

ANSWER_S = 30.0
"""How long the daemon may take for an answer, counted anew from every progress message."""
LONG_ANSWER_S = 600.0
"""The same while a compiler or the device is at work, which may say nothing for long. The supervisor watches
them: it answers by itself when one of them makes no progress."""
_OF_THE_COMPILER = (msg.GraphCreate, msg.GraphImport, msg.GraphExport, msg.GraphQuery, msg.CompilerOptions)
_WORK = (msg.GraphInitialize, *_OF_THE_COMPILER)
_generation = 0


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


Late = Callable[[msg.Answer, list[int]], None]
"""Takes an answer that came when its caller had gone, with its descriptors; called with locks held: it only
notes."""


class _Pending:
    """One request that waits for its answer; `given_up` when its caller has gone before that."""

    __slots__ = ("answer", "events", "given_up", "late", "packet")

    def __init__(self, late: Late | None) -> None:
        self.late = late
        self.is_cancelled = False
        self.packet: Packet | None = None
        self.answer: msg.Answer | None = None
        self.events: deque[msg.Progress] = deque()


class Connection:
    """Requests to one daemon. After the daemon is gone every call raises ERROR_DEVICE_LOST at once."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self._channel = Channel(sock)
        self._generation = _generation
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[int, _Pending] = {}
        self._reading = False
        self._lost: str | None = None
        self.ended = False
        """Whether the daemon has closed the connection, and nothing else is wrong with it."""
        self._closed = False
        self._inside = threading.local()
        self._leisure: deque[Callable[[], None]] = deque()

    # ------------------------------------------------------------ what collected objects leave behind

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Inside, `at_leisure` only takes note; what it noted is done at the end of the outermost block.

        Python may collect an object, and run its finalizer, at any allocation: also while this very
        thread holds the locks that the finalizer needs.
        """
        depth = getattr(self._inside, "depth", 0)
        self._inside.depth = depth + 1
        try:
            yield
        finally:
            self._inside.depth = depth
            if not depth:
                self._catch_up()

    def defer(self, call: Callable[[], None]) -> None:
        """Does `call` now if this thread is outside of every section, else when it leaves the outermost."""
        self._leisure.append(call)
        if not getattr(self._inside, "depth", 0):
            self._catch_up()

    def _catch_up(self) -> None:
        while self._leisure and self._generation == _generation:
            try:
                call = self._leisure.popleft()
            except IndexError:
                return  # another thread took it
            with contextlib.suppress(ZeError):  # the daemon is gone: so is what was to be given back
                call()

    # ------------------------------------------------------------ requests

    def request(
        self,
        call: str,
        message: msg.Message,
        kind: type[A],
        fds: Sequence[int] = (),
        progress: Callable[[msg.Progress], None] | None = None,
        late: Late | None = None,
    ) -> tuple[A, list[int]]:
        """Sends a request and waits for its answer; the descriptors of the answer become the caller's.

        Raises `ZeError`: what the daemon refused, or ERROR_DEVICE_LOST when it is gone or silent.
        If `progress` raises, the request is cancelled and the exception goes on. When something else ends
        the wait, such as KeyboardInterrupt, the request goes on and `late` gets its answer.
        """
        self.check(call)
        with self.section():
            return self._request(call, message, kind, fds, progress, late)

    def _request(
        self,
        call: str,
        message: msg.Message,
        kind: type[A],
        fds: Sequence[int],
        progress: Callable[[msg.Progress], None] | None,
        late: Late | None,
    ) -> tuple[A, list[int]]:
        pending = _Pending(late)
        number = self._next_number()
        with self._changed:
            self._pending[number] = pending
        try:
            self._send(call, number, message, fds)
            if failpoints.active is not None:
                failpoints.hit_request("client", type(message))
            self._await(call, message, pending, progress)
        except BaseException:
            self._give_up(number, pending)
            if isinstance(message, _OF_THE_COMPILER):
                self.post(msg.Cancel(request=number))
            raise
        with self._changed:
            del self._pending[number]
        assert pending.packet is not None
        with pending.packet as packet:
            if isinstance(pending.answer, msg.Failed):
                raise ZeError(call, pending.answer.info)
            if not isinstance(pending.answer, kind):
                raise self._mark_lost(call, f"it answered {type(pending.answer).__name__}")
            return pending.answer, packet.take_fds(packet.fd_count)

    def post(self, message: msg.Message) -> None:
        """Sends a request whose answer nobody waits for; a daemon that is gone is not an error."""
        if self._lost is None and not self._closed and self._generation == _generation:
            with self.section(), contextlib.suppress(ZeError):
                self._send("", self._next_number(), message, ())

    def check(self, call: str) -> None:
        """Raises `ZeError` unless the connection can be used from here."""
        if self._generation != _generation:
            raise error(
                call,
                ZeResult.ERROR_UNINITIALIZED,
                "driver",
                found=f"opened by process {self._pid}, used in its forked child {os.getpid()}",
                expected="a driver of this process",
                hint="open a driver after the fork",
            )
        if self._closed:
            raise error(
                call,
                ZeResult.ERROR_UNINITIALIZED,
                "driver",
                found="closed",
                expected="an open driver",
                hint="open a new one",
            )
        if self._lost is not None:
            raise self.lost_error(call)

    def is_lost(self) -> bool:
        """Whether the daemon is gone, asked anew (one system call)."""
        if self._lost is None and not self._closed and self._channel.peer_gone():
            self._mark_lost("", "it has ended")
        return self._lost is not None or self._closed

    def lost_error(self, call: str) -> ZeError:
        """The error that every wait ends with when the daemon is gone."""
        found = self._lost or "the driver was closed"
        return ZeError(
            call,
            ErrorInfo(
                result=ZeResult.ERROR_DEVICE_LOST,
                object=f"daemon at {self.name}",
                found=found,
                expected="a running daemon",
                hint="open a new driver; the daemon's log may say why it ended",
            ),
        )

    def give_up(self, call: str, reason: str) -> ZeError:
        """The two sides do not agree any more: no request is made from now on; the error to raise."""
        return self._mark_lost(call, reason)

    def close(self) -> None:
        """Ends the session: the daemon gives back everything that it owned. Harmless when repeated."""
        if not self._closed:
            if failpoints.active is not None:
                failpoints.hit("client.close")
            self._closed = True
            self._channel.close()
            with self._changed:
                self._changed.notify_all()

    # ------------------------------------------------------------

    def _give_up(self, number: int, pending: _Pending) -> None:
        """Nobody waits for this answer any more; whoever reads the socket next deals with it."""
        with self._changed:
            pending.is_cancelled = True
            if number not in self._pending:
                return
            if pending.packet is not None or self._lost is not None or self._closed:
                self._settle_late(number, pending)

    def _settle_late(self, number: int, pending: _Pending) -> None:
        """Called with `_changed` held."""
        del self._pending[number]
        packet, answer = pending.packet, pending.answer
        if packet is None or answer is None:
            return
        if pending.late is None or isinstance(answer, msg.Failed):
            packet.close()
        else:
            pending.late(answer, packet.take_fds(packet.fd_count))

    def _next_number(self) -> int:
        # 32 bits on the wire, and 0 is for events
        return next(self._numbers) % 0xFFFFFFFF + 1

    def _send(self, call: str, number: int, message: msg.Message, fds: Sequence[int]) -> None:
        try:
            with self._send_lock:
                self._channel.send(number, msg.encode(message), fds)
        except Refused as refused:
            self._pending.pop(number, None)  # it was not sent: there will be no answer
            raise ZeError(call, refused.info) from refused
        except OSError as failure:
            self._note_end(isinstance(failure, ConnectionError))
            raise self._mark_lost(call, failure.strerror or str(failure)) from failure

    def _await(
        self,
        call: str,
        message: msg.Message,
        pending: _Pending,
        progress: Callable[[msg.Progress], None] | None,
    ) -> None:
        limit = LONG_ANSWER_S if isinstance(message, _WORK) else ANSWER_S
        end = time.monotonic() + limit
        while True:
            with self._changed:
                self._wait_change(pending, end)
                events = list(pending.events)
                pending.events.clear()
                done = pending.packet is not None
            if events:
                end = time.monotonic() + limit
                if progress is not None:
                    for event in events:
                        progress(event)
            if done:
                return
            if self._lost is not None or self._closed:
                raise self.lost_error(call)
            if time.monotonic() >= end:
                raise self._silence(call, message, limit)

    def _silence(self, call: str, message: msg.Message, limit: float) -> ZeError:
        """The error of a request that nobody answers. A compiler that hangs is not the end of the session."""
        if not isinstance(message, _OF_THE_COMPILER):
            return self._mark_lost(call, f"no answer within {limit:g} s")
        return error(
            call,
            ZeResult.ERROR_MODULE_BUILD_FAILURE,
            "compiler",
            found=f"it has said nothing for {limit:g} s",
            expected="an answer, or progress",
            hint="try again; the daemon's log may say more",
        )

    def _wait_change(self, pending: _Pending, end: float) -> None:
        """Returns when something happened to `pending`, or at `end`. Called with `_changed` held."""
        while pending.packet is None and not pending.events and self._lost is None and not self._closed:
            left = end - time.monotonic()
            if left <= 0:
                return
            if self._reading:
                self._changed.wait(left)
            else:
                self._read_one(min(left, 1.0))

    def _read_one(self, timeout_s: float) -> None:
        """Reads a frame for whoever waits for it. Called with `_changed` held, gives it up meanwhile."""
        self._reading = True
        self._changed.release()
        packet: Packet | None = None
        reason = ""
        try:
            if self._channel.wait_readable(timeout_s):
                # until the frame is here: whatever interrupts this thread now may have cost us an answer
                reason = "this process was interrupted while it read an answer"
                packet = self._channel.receive()
                reason = "" if packet else "it has ended"
                self._note_end(packet is None)
        except (OSError, ValueError) as failure:
            reason = str(failure)
        except Refused as refused:
            reason = f"it sent a bad frame: {refused}"
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
            if reason:
                self._lost = self._lost or reason
        if packet is not None:
            self._dispatch(packet)

    def _dispatch(self, packet: Packet) -> None:
        try:
            answer = msg.decode_answer(packet.body)
        except Refused as refused:
            packet.close()
            self._lost = self._lost or f"it sent a bad message: {refused}"
            return
        pending = self._pending.get(packet.request)
        if packet.request == 0 and isinstance(answer, msg.Failed):
            self._lost = self._lost or str(answer.info)
        if pending is None:
            packet.close()
        elif isinstance(answer, msg.Progress):
            if not pending.is_cancelled:
                pending.events.append(answer)
        else:
            pending.answer = answer
            pending.packet = packet
            if pending.is_cancelled:
                self._settle_late(packet.request, pending)

    def _note_end(self, closed: bool) -> None:
        self.ended = self.ended or (closed and self._lost is None)

    def _mark_lost(self, call: str, reason: str) -> ZeError:
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()
        return self.lost_error(call)
