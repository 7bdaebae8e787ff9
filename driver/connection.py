"""The control connection of a process: requests and answers, from any number of threads.

It has no thread of its own: one of the waiting threads reads the socket for all of them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from softnpu.driver import endings
from softnpu.driver.errors import NoAnswerError, ZeError, error, invalid_argument, uninitialized
from softnpu.driver.status_page import StatusPage
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

A = TypeVar("A", bound=msg.Message)

ANSWER_S = 30.0
"""Seconds that the daemon may take to answer; every progress message restarts the clock."""
LONG_ANSWER_S = 600.0
"""The same while a compiler or the device works, which may be silent for long. The supervisor watches them,
and answers in their place if they make no progress.
"""
_COMPILER_REQUESTS = (msg.GraphCreate, msg.GraphImport, msg.GraphExport, msg.GraphQuery, msg.CompilerOptions)
_LONG_REQUESTS = (msg.GraphInitialize, msg.QueueDestroy, msg.ContextDestroy, *_COMPILER_REQUESTS)
_NO_ROOM = (errno.EMFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS)
_NO_TRACE = memoryview(bytes(8)).cast("Q")
_epoch = 0  # forks of this process: a connection belongs to the process that opened it


def _count_fork() -> None:
    global _epoch
    _epoch += 1


os.register_at_fork(after_in_child=_count_fork)


OnLateAnswer = Callable[[msg.Answer, list[int]], None]
"""Handles an answer, with its descriptors, whose caller was interrupted. Called with locks held, so it only
queues it.
"""


class _Pending:
    """A pending request; `is_cancelled` when its caller has left before the answer."""

    __slots__ = ("answer", "events", "is_cancelled", "on_late_answer", "packet")

    def __init__(self, on_late_answer: OnLateAnswer | None) -> None:
        self.on_late_answer = on_late_answer
        self.is_cancelled = False
        self.packet: Packet | None = None
        self.answer: msg.Answer | None = None
        self.events: deque[msg.Progress] = deque()


class Connection:
    """Requests to one daemon. After the daemon is gone every call raises ERROR_DEVICE_LOST at once."""

    def __init__(self, sock: socket.socket, name: str, answer_s: float = ANSWER_S) -> None:
        self.name = name
        self._answer_s = answer_s
        self._channel = Channel(sock)
        self._epoch = _epoch
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[int, _Pending] = {}
        self._reading = False
        self._lost: str | None = None
        self.peer_closed = False
        """Whether the daemon closed the connection before any other failure."""
        self._closed = False
        self.socket = self._channel.fileno()
        """Its socket; -1 if the connection is lost or closed."""
        self._page: StatusPage | None = None  # its words are valid as long as this object lives
        self.life = 0
        """Address of the word of this session's life; 0: there is none."""
        self._trace = _NO_TRACE
        self._trace_seen = 0
        self._follow: Callable[[], bool] = lambda: True
        self._sections = threading.local()
        self._deferred: deque[Callable[[], None]] = deque()

    def watch_life(self, page: StatusPage, session: int) -> None:
        """Let sleepers learn from the daemon's status page that this session has ended."""
        self._page = page
        self.life = page.life_of(session)

    # ------------------------------------------------------------ tracing

    @property
    def trace(self) -> int:
        """Number of the running trace, 0 for none."""
        number: int = self._trace[0]
        return number

    def watch_trace(self, word: memoryview, follow: Callable[[], bool]) -> None:
        """Call `follow()` on the next request or submission after this word changes, until it is True."""
        self._follow = follow
        self._trace = word

    def _leave_trace(self) -> None:
        self._trace = _NO_TRACE
        if self._trace_seen:
            self._follow_trace()

    def _follow_trace(self) -> None:
        before, self._trace_seen = self._trace_seen, self._trace[0]
        if not self._follow():
            self._trace_seen = before

    # ------------------------------------------------------------ calls of finalizers

    @contextlib.contextmanager
    def deferred_section(self) -> Iterator[None]:
        """Queue calls of `defer` inside the section; make them at the end of the outermost one.

        Python may collect an object, and run its finalizer, at any allocation, even while this very thread
        holds the locks that the finalizer needs.
        """
        depth = getattr(self._sections, "depth", 0)
        self._sections.depth = depth + 1
        try:
            yield
        finally:
            self._sections.depth = depth
            if not depth:
                self._run_deferred()

    def defer(self, call: Callable[[], None]) -> None:
        """Make `call` now, or when this thread leaves its outermost deferred section."""
        self._deferred.append(call)
        if not getattr(self._sections, "depth", 0):
            self._run_deferred()

    def _run_deferred(self) -> None:
        while self._deferred and self._epoch == _epoch:
            try:
                call = self._deferred.popleft()
            except IndexError:
                return  # another thread took it
            with contextlib.suppress(ZeError):  # the daemon is gone, and everything with it
                call()

    # ------------------------------------------------------------ requests

    def request(
        self,
        call: str,
        message: msg.Message,
        kind: type[A],
        fds: Sequence[int] = (),
        progress: Callable[[msg.Progress], None] | None = None,
        on_late_answer: OnLateAnswer | None = None,
    ) -> tuple[A, list[int]]:
        """Send a request and wait for its answer; the caller owns the answer's descriptors.

        Raises `ZeError`: the daemon's refusal, or ERROR_DEVICE_LOST when it is gone or silent. If `progress`
        raises, the request is cancelled and the exception propagates. If anything else ends the wait, such as
        KeyboardInterrupt, the request continues and `on_late_answer` receives its answer.
        """
        self.check(call)
        with self.deferred_section():
            return self._request(call, message, kind, fds, progress, on_late_answer)

    def _request(
        self,
        call: str,
        message: msg.Message,
        kind: type[A],
        fds: Sequence[int],
        progress: Callable[[msg.Progress], None] | None,
        on_late_answer: OnLateAnswer | None,
    ) -> tuple[A, list[int]]:
        pending = _Pending(on_late_answer)
        number = self._next_number()
        with self._changed:
            self._pending[number] = pending
        try:
            self._send(call, number, message, fds)
            if failpoints.active is not None:
                failpoints.hit_request("client", message.tag)
            self._await(call, message, pending, progress)
        except BaseException:
            self._abandon(number, pending)
            if isinstance(message, _COMPILER_REQUESTS):
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
        """Send a request without waiting for the answer; a dead daemon is not an error."""
        if self._lost is None and not self._closed and self._epoch == _epoch:
            with self.deferred_section(), contextlib.suppress(ZeError):
                self._send("", self._next_number(), message, ())

    def check(self, call: str) -> None:
        """Raise `ZeError` unless this process can use the connection."""
        if self._epoch != _epoch:
            raise uninitialized(
                call,
                "driver",
                found=f"opened by process {self._pid}, used in its forked child {os.getpid()}",
                expected="a driver of this process",
                hint="open a driver after the fork",
            )
        if self._closed:
            raise uninitialized(
                call, "driver", found="closed", expected="an open driver", hint="open a new one"
            )
        if self._lost is not None:
            raise self.lost_error(call)
        if self._trace[0] != self._trace_seen:
            self._follow_trace()

    def is_lost(self) -> bool:
        """Return whether the daemon is gone; one system call."""
        if self._lost is None and not self._closed and self._channel.peer_gone():
            with self._changed:  # earlier messages may say why
                while self._lost is None and not self._closed and not self._reading:
                    self._read_one(0)
        return self._lost is not None or self._closed

    def lost_error(self, call: str) -> ZeError:
        """Return the error that ends every wait when the daemon is gone."""
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

    def protocol_error(self, call: str, reason: str) -> ZeError:
        """Return the error for a protocol violation; no request is made from now on."""
        return self._mark_lost(call, reason)

    def close(self) -> None:
        """End the session: the daemon frees everything that it owned. Idempotent."""
        if not self._closed:
            if failpoints.active is not None:
                failpoints.hit("client.close")
            self._closed = True
            self.socket = -1
            endings.note()
            self._leave_trace()
            if self._pid == os.getpid():
                self._channel.shut_down()  # a forked child's copy of the socket would keep the session
            self._channel.close()
            with self._changed:
                self._changed.notify_all()

    # ------------------------------------------------------------ sending, and waiting for answers

    def _abandon(self, number: int, pending: _Pending) -> None:
        """Stop waiting for this answer; the next reader of the socket handles it."""
        with self._changed:
            pending.is_cancelled = True
            if number not in self._pending:
                return
            if pending.packet is not None or self._lost is not None or self._closed:
                self._handle_late_answer(number, pending)

    def _handle_late_answer(self, number: int, pending: _Pending) -> None:
        """Handle an answer without a caller. Requires `_changed` locked."""
        del self._pending[number]
        packet, answer = pending.packet, pending.answer
        if packet is None or answer is None:
            return
        if pending.on_late_answer is None or isinstance(answer, msg.Failed):
            packet.close()
        else:
            pending.on_late_answer(answer, packet.take_fds(packet.fd_count))

    def _next_number(self) -> int:
        # 32 bits on the wire, and 0 is for events
        return next(self._numbers) % 0xFFFFFFFF + 1

    def _send(self, call: str, number: int, message: msg.Message, fds: Sequence[int]) -> None:
        try:
            encoded = msg.encode(message)
        except (TypeError, ValueError, OverflowError) as failure:
            self._pending.pop(number, None)  # not sent: there will be no answer
            raise _bad_field(call, message) from failure
        try:
            with self._send_lock:
                self._channel.send(number, encoded, fds)
        except Refused as refused:
            self._pending.pop(number, None)
            raise ZeError(call, refused.info) from refused
        except OSError as failure:
            if fds and not isinstance(failure, ConnectionError):
                self._pending.pop(number, None)
                raise _bad_descriptor(call, fds, failure) from failure
            self._note_peer_closed(isinstance(failure, ConnectionError))
            raise self._mark_lost(call, failure.strerror or str(failure)) from failure

    def _await(
        self,
        call: str,
        message: msg.Message,
        pending: _Pending,
        progress: Callable[[msg.Progress], None] | None,
    ) -> None:
        limit = LONG_ANSWER_S if isinstance(message, _LONG_REQUESTS) else self._answer_s
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
                raise self._timeout_error(call, message, limit)

    def _timeout_error(self, call: str, message: msg.Message, limit: float) -> ZeError:
        """Return the error of an unanswered request. A hung compiler does not end the session."""
        if not isinstance(message, _COMPILER_REQUESTS):
            lost = self._mark_lost(call, f"no answer within {limit:g} s")
            return NoAnswerError(call, lost.info)
        return error(
            call,
            ZeResult.ERROR_MODULE_BUILD_FAILURE,
            "compiler",
            found=f"it has said nothing for {limit:g} s",
            expected="an answer, or progress",
            hint="try again; the daemon's log may say more",
        )

    def _wait_change(self, pending: _Pending, end: float) -> None:
        """Return when `pending` has changed, or at `end`. Requires `_changed` locked."""
        while pending.packet is None and not pending.events and self._lost is None and not self._closed:
            left = end - time.monotonic()
            if left <= 0:
                return
            if self._reading:
                self._changed.wait(left)
            else:
                self._read_one(min(left, 1.0))

    def _read_one(self, timeout_s: float) -> None:
        """Read one frame, whichever request it answers. Requires `_changed` locked; releases it meanwhile."""
        self._reading = True
        self._changed.release()
        packet: Packet | None = None
        reason = ""
        try:
            if self._channel.wait_readable(timeout_s):
                # until the frame is here, interrupting this thread may have lost an answer
                reason = "this process was interrupted while it read an answer"
                packet = self._channel.receive()
                reason = "" if packet else "it has ended"
                self._note_peer_closed(packet is None)
        except (OSError, ValueError) as failure:
            reason = str(failure)
        except Refused as refused:
            reason = f"it sent a bad frame: {refused}"
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
            if reason:
                self._lose(reason)
        if packet is not None:
            self._dispatch(packet)

    def _dispatch(self, packet: Packet) -> None:
        try:
            answer = msg.decode_answer(packet.body)
        except Refused as refused:
            packet.close()
            self._lose(f"it sent a bad message: {refused}")
            return
        pending = self._pending.get(packet.request)
        if packet.request == 0 and isinstance(answer, msg.Failed):
            self._lose(str(answer.info))
        if pending is None:
            packet.close()
        elif isinstance(answer, msg.Progress):
            if not pending.is_cancelled:
                pending.events.append(answer)
        else:
            pending.answer = answer
            pending.packet = packet
            if pending.is_cancelled:
                self._handle_late_answer(packet.request, pending)

    def _note_peer_closed(self, closed: bool) -> None:
        self.peer_closed = self.peer_closed or (closed and self._lost is None)

    def _mark_lost(self, call: str, reason: str) -> ZeError:
        with self._changed:
            self._lose(reason)
            self._changed.notify_all()
        return self.lost_error(call)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self.socket = -1
        endings.note()


def _bad_descriptor(call: str, fds: Sequence[int], failure: OSError) -> ZeError:
    """Return the error of a frame whose descriptors could not be sent."""
    subject, found = f"descriptor {', '.join(map(str, fds))}", failure.strerror or str(failure)
    if failure.errno in _NO_ROOM:
        result = ZeResult.ERROR_OUT_OF_HOST_MEMORY
        return error(call, result, subject, found=found, expected="room to send it")
    return invalid_argument(call, subject, found=found, expected="an open file that may be passed on")


def _bad_field(call: str, message: msg.Message) -> ZeError:
    """Return the error of an unencodable message, naming the field of the wrong type."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        try:
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError) as failure:
            return invalid_argument(
                call,
                f"{message.tag}, {name}",
                found=f"a {type(value).__name__}: {failure}",
                expected="a value that can be sent: a number, a text",
            )
    return invalid_argument(call, message.tag, found="values that cannot be sent", expected="others")
