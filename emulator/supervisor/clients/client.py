"""One connection: handshake, frames in and out, and noticing that the client is gone.

The end of a client is known from two sources: the end of its socket, and its pidfd, because a forked
child may keep a copy of the socket open after the client itself was killed.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ParamSpec, Protocol

from softnpu.emulator.common import failpoints, process_identity
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import trace
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.injections import FaultKind, Injection
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.supervisor.children.outbox import Outbox
from softnpu.emulator.supervisor.clients import asked_settings
from softnpu.emulator.supervisor.clients.leases import Leases
from softnpu.emulator.supervisor.descriptors_in_flight import Flight
from softnpu.emulator.supervisor.injections.delayed_requests import DelayedRequests
from softnpu.emulator.supervisor.injections.injection_registry import InjectionRegistry, InjectionRequest
from softnpu.emulator.supervisor.injections.request_injections import (
    WORKER_SIGNALS,
    RequestTarget,
    injected_refusal,
)
from softnpu.emulator.supervisor.internal_errors import is_shortage
from softnpu.emulator.supervisor.limits import Account
from softnpu.emulator.supervisor.observe.trace_sessions import TracerRequest, TraceSessions
from softnpu.emulator.supervisor.reactor import Timer
from softnpu.emulator.supervisor.requests.graph_requests import cancelled_info
from softnpu.emulator.supervisor.requests.session import Session
from softnpu.emulator.supervisor.requests.session_state import Call, Services
from softnpu.emulator.supervisor.users import User

log = logging.getLogger(__name__)

P = ParamSpec("P")

_BACKLOG = 256  # the most frames that wait for the client to read them
_FRAMES_A_ROUND = 32
_ROUND_S = 0.003
_UNREAD_BYTES = 1024 * 1024  # of those frames


class Server(Protocol):
    """The daemon as seen by a connection."""

    @property
    def status_fd(self) -> int: ...
    def welcome(self, hello: msg.Hello, session: int, devices: Sequence[int], check: str) -> msg.Welcome: ...
    def status(self, user: User, devices: Sequence[int]) -> msg.StatusAnswer: ...
    def activity(self, user: User, request: msg.Activity) -> msg.ActivityAnswer: ...
    def stop(self) -> None: ...
    def client_gone(self, number: int) -> None: ...
    def watch_idle(self) -> None: ...


class Client:
    """A connected process; it has a `session` once the handshake was made for one.

    `only_looks`: the handshake was a monitor's, which does not keep an idle daemon alive.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        user: User,
        channel: Channel,
        server: Server,
        services: Services,
        injections: InjectionRegistry,
        traces: TraceSessions,
        leases: Leases,
        handshake_s: float,
    ) -> None:
        self.number = number
        self.pid = pid
        self.user = user
        self.session: Session | None = None
        self.only_looks = False
        self._devices: Sequence[int] = range(len(services.devices))
        self._name = ""
        self._server = server
        self._services = services
        self._injections = injections
        self._traces = traces
        self._leases = leases
        self._leases_devices = False
        self._reactor = services.reactor.owned(
            f"which ends client {number} (pid {pid})", self._end_soon, share=user.uid
        )
        self._channel = channel
        self._outbox = Outbox(channel, self._watch, _BACKLOG)
        self._flight = Flight(channel, self._outbox, user.flights)
        self._delayed = DelayedRequests(self._reactor, partial(self._serve, delayed=True))
        self._greeted = False
        self._open = True
        self._ending = False  # it ends after the request being served, the last one
        self._deaf = False  # it does not read its answers, and gets no more
        self._handshake_s = handshake_s
        self._handshake_timer: Timer | None = None
        self._pidfd = -1
        self._start_time = 0
        # its shares of what its user may have: `_give_back` returns them
        self._connection = user.connections.hold()
        self._handshake = user.handshakes.hold()
        self._unread = Account(user.unread)
        self._one_session: Account | None = None

    def begin(self) -> None:
        """Start reading from it, and watch for its end."""
        self._reactor.guarded(self._begin)()

    def _begin(self) -> None:
        self._watch(False)
        self._handshake_timer = self._reactor.after(
            self._handshake_s, lambda: self.close("no handshake in time")
        )
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._reactor.watch(self._pidfd, lambda: self.close("its process ended"))
            self._start_time = process_identity.start_time(self.pid)
        except OSError as error:
            # a process of another pid namespace has no pidfd here: the end of its socket must do
            log.debug("client %d: process %d: %s", self.number, self.pid, error)

    def close(self, reason: str) -> None:
        """End the connection and release everything its session owned; harmless when repeated."""
        if not self._open:
            return
        if failpoints.active is not None:
            failpoints.hit("supervisor.close")
        self._open = False
        # in reverse order, all of it even if one call raises
        with ExitStack() as steps:
            steps.callback(self._server.client_gone, self.number)
            steps.callback(self._end_channel)
            steps.callback(self._give_back)
            if self.session is not None:
                steps.callback(self.session.close)
            steps.callback(self._delayed.close)
            steps.callback(self._outbox.close)
            steps.callback(self._unwatch)
            if trace.active is not None and self.session is not None:
                trace.active.event(f"session ends: {reason}", self.number, number=self.pid)
            log.info("client %d (pid %d) leaves: %s", self.number, self.pid, reason)

    def _unwatch(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._reactor.unwatch(self._channel.fileno())
        if self._pidfd >= 0:
            self._reactor.unwatch(self._pidfd)
            os.close(self._pidfd)

    def _end_channel(self) -> None:
        """Close the socket once the peer has read all frames with descriptors; they count until then."""
        self._flight.settle()
        if self._flight.used:
            self._flight.linger(self._reactor, self.user.connections.hold().close)
        else:
            self._channel.discard()

    def _give_back(self) -> None:
        for account in (self._unread, self._one_session, self._handshake, self._connection):
            if account is not None:
                account.close()

    def end(self, info: ErrorInfo) -> None:
        """End the session, and tell the client why if possible."""
        try:
            self._post(0, msg.Failed(info=info))
        finally:
            self.close(str(info))

    def _end_soon(self, info: ErrorInfo) -> None:
        """End the session once no request is being served; serve no further ones."""
        self._reactor.after(0, lambda: self.end(info))
        self._ending = True

    def _watch(self, full: bool) -> None:
        """Watch for frames, and, while the socket is `full`, for room in it."""
        self._reactor.watch(self._channel.fileno(), self._read, self._flush if full else None)

    def _flush(self) -> None:
        self._outbox.flush()
        self._count_unread()

    def _count_unread(self) -> None:
        self._unread.set(self._outbox.waiting_bytes)

    def _post(self, request: int, message: msg.Message, fds: Sequence[int] = ()) -> None:
        if not self._open or self._deaf:
            return
        if isinstance(message, msg.Failed):
            message = msg.Failed(info=message.info.shortened())
        if fds:
            self._flight.take(len(fds))
        try:
            self._outbox.post(request, message, fds)
            if self._outbox.waiting_bytes != self._unread.used:
                self._count_unread()
                self._check_unread()
        except BufferError as error:
            # closing here would pull the session from under the request being served
            log.warning("client %d: %s", self.number, error)
            self._reactor.after(0, lambda: self.close("it does not read its answers"))
            self._deaf = True

    def _check_unread(self) -> None:
        if self._unread.used > _UNREAD_BYTES or self.user.unread.used > self.user.unread.limit:
            raise BufferError(f"{self._unread.used} bytes wait for a peer that does not read")

    def _read(self) -> None:
        # a bound on the frames and the time of one round keeps a flooding client from starving the others
        end = time.monotonic() + _ROUND_S
        for _ in range(_FRAMES_A_ROUND):
            if not self._open or self._ending or time.monotonic() > end:
                return
            try:
                packet = self._channel.receive()
            except BlockingIOError:
                return
            except MemoryError:
                self._reactor.pause(self._channel.fileno())
                return
            except Refused as error:
                # the stream is not trustworthy after a malformed frame: say why, then end it
                self._post(0, msg.Failed(info=error.info))
                self.close(f"malformed frame: {error}")
                return
            except OSError as error:
                self.close(str(error))
                return
            if packet is None:
                self.close("it closed the connection")
                return
            with packet:
                try:
                    if packet.fd_count:
                        self.user.check_descriptors()
                except Refused as error:
                    self.end(error.info)
                    return
                # who asks again has read what was answered: at the next answer, something may be on its way
                self._flight.settle()
                self._serve(packet)

    def _serve(self, packet: Packet, delayed: bool = False) -> None:
        self._answering(packet.request, self._serve_request, packet, delayed)

    def _answering(self, request: int, serve: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Serve a request, or a later part of one; an exception becomes the answer.

        A shortage fails this request alone. An unexpected error ends the client: its objects may be half
        changed.
        """
        if not self._open:
            return
        try:
            serve(*args, **kwargs)
        except Refused as error:
            log.info("client %d: refused: %s", self.number, error.info.shortened())
            self._post(request, msg.Failed(info=error.info))
        except Exception as error:  # noqa: BLE001  # the boundary: nobody else's request may suffer
            short = is_shortage(error)
            what = f"which {'fails a request of' if short else 'ends'} client {self.number} (pid {self.pid})"
            info = self._reactor.errors.note(error, what)
            self._post(request, msg.Failed(info=info))
            if not short:
                self._end_soon(info)
        if not self._greeted and not self._delayed.holds:
            self.close("handshake refused")

    def _serve_request(self, packet: Packet, delayed: bool) -> None:
        packet.refuse_sockets()
        request = msg.decode_request(packet.body)
        if failpoints.active is not None:
            failpoints.hit_request("supervisor", request.tag)
        call = Call(packet)
        if self._injections.armed and not delayed:
            target = RequestTarget(self.number, self.session, request)
            injection = self._injections.hit(target)
            if injection is not None:
                if not self._inject(injection, target, packet):
                    return
                call = Call(packet, WORKER_SIGNALS[injection.kind])
        if isinstance(request, msg.Cancel) and self._delayed.cancel(request.request):
            self._post(request.request, msg.Failed(info=cancelled_info()))
        if not self._greeted:
            self._greet(packet.request, request)
        elif isinstance(request, msg.Status):
            self._post(packet.request, self._server.status(self.user, self._devices))
        elif isinstance(request, msg.Activity):
            self._post(packet.request, self._server.activity(self.user, request))
        elif isinstance(request, msg.Stop):
            self.user.check_commands("request Stop")
            log.info("client %d (pid %d) asks to stop", self.number, self.pid)
            self._post(packet.request, msg.Ok())
            self._server.stop()
        elif isinstance(request, InjectionRequest):
            self.user.check_commands(f"request {type(request).__name__}")
            self._post(packet.request, self._injections.answer(request))
        elif isinstance(request, TracerRequest):
            self.user.check_commands(f"request {type(request).__name__}")
            self._traces.answer(self.number, request, partial(self._post, packet.request))
        elif isinstance(request, msg.LeaseTake):
            self._post(packet.request, self._take_lease(request))
        elif isinstance(request, tracing.TraceJoin) and self.session is not None:
            self._traces.join(self.session, request.trace, partial(self._post, packet.request))
        elif self.session is not None:
            self._handle(self.session, call, request)
        else:
            raise refuse(
                ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                f"request {type(request).__name__}",
                found="a connection without a session",
                expected="the role 'session'",
            )

    def _handle(self, session: Session, call: Call, request: msg.Request) -> None:
        if trace.active is None:
            session.handle(call, request)
            return
        started = time.monotonic_ns()
        try:
            session.handle(call, request)
        finally:
            trace.active.request(request.tag, started, self.number)

    def _take_lease(self, request: msg.LeaseTake) -> msg.Leased:
        if not self._leases_devices:
            raise refuse(
                ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                "request LeaseTake",
                found="a connection of another role",
                expected="the role 'lease'",
            )
        return self._leases.take(self.number, self.pid, self._name, request)

    def _inject(self, injection: Injection, target: RequestTarget, packet: Packet) -> bool:
        """Apply an injected fault; return whether the request is still served. Raises `Refused`."""
        match injection.kind:
            case FaultKind.DAEMON_DEATH:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.DISCONNECT:
                self.close("injected fault")
            case FaultKind.COMPILE_SLOW | FaultKind.DELAY:
                self._delayed.hold(packet, injection.seconds)
            case _ if injection.kind in WORKER_SIGNALS:
                return True
            case _:
                raise injected_refusal(injection, target.tag)
        return False

    def _greet(self, number: int, request: msg.Request) -> None:
        if not isinstance(request, msg.Hello):
            raise refuse(
                ZeResult.ERROR_UNINITIALIZED,
                "connection",
                found=f"{type(request).__name__} before Hello",
                expected="Hello",
            )
        if request.role not in set(msg.Role):
            raise refuse(
                ZeResult.ERROR_INVALID_ENUMERATION,
                "handshake",
                found=f"role {request.role!r}",
                expected=", ".join(msg.Role),
            )
        is_session = request.role == msg.Role.SESSION
        if is_session:
            self._devices = self._leases.devices_of(request.lease)
        alone = asked_settings.notes_folder(request.settings, self.user.uid) if is_session else ""
        check = self._services.check or alone
        welcome = self._server.welcome(request, self.number, self._devices, check)
        if is_session:
            self.user.sessions.check()
        self._leases_devices = request.role == msg.Role.LEASE
        if self._leases_devices:
            self._leases.check_role()
        self._name = request.client
        if not is_session:
            self.only_looks = request.role == msg.Role.MONITOR
            self._server.watch_idle()
        else:
            self.session = Session(
                self.number,
                self.pid,
                self._start_time,
                request.client,
                self._services,
                self.user,
                self._devices,
                self._reactor,
                self._post,
                self.end,
                self._reactor.guarded(self._answering),
                check,
            )
            self._one_session = self.user.sessions.hold()
            self._leases.join(request.lease, self.number, self.end)
            if trace.active is not None:
                trace.active.event(f"session: {self.session.client}", self.number, number=self.pid)
        log.info(
            "client %d (pid %d) is %s, %s", self.number, self.pid, repr(request.client[:64]), request.role
        )
        self._post(number, welcome, [self._server.status_fd])
        self._greeted = True
        self._handshake.close()
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
