"""The supervisor: accepts clients, routes their requests, watches clients and engines die."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

import softnpu
from softnpu.emulator.common import failpoints, linux, untrusted_fds
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.environment import check_folder
from softnpu.emulator.interface.records import DeviceState
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR, advice
from softnpu.emulator.kernels import trust
from softnpu.emulator.supervisor.chores import Chores
from softnpu.emulator.supervisor.clients import asked_settings
from softnpu.emulator.supervisor.clients.client import Client
from softnpu.emulator.supervisor.clients.leases import Leases
from softnpu.emulator.supervisor.clients.rejected_connections import RejectedConnections
from softnpu.emulator.supervisor.compilers.pool import CompilerPool
from softnpu.emulator.supervisor.engines.ban_policy import BanPolicy
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.injections.injection_registry import InjectionRegistry, SessionPlace
from softnpu.emulator.supervisor.observe import activity_answer
from softnpu.emulator.supervisor.observe.sysfs_tree import SysfsTree
from softnpu.emulator.supervisor.observe.trace_sessions import TraceSessions
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.requests.session import Session
from softnpu.emulator.supervisor.requests.session_state import Services
from softnpu.emulator.supervisor.settings import DaemonSettings, Isolation, limits_for
from softnpu.emulator.supervisor.undoing import undoing
from softnpu.emulator.supervisor.users import FunctionKey, User, Users

log = logging.getLogger(__name__)

# sources that were not installed have no version
SERVER_NAME = f"softnpu {getattr(softnpu, '__version__', 'sources')}"
_LISTED_SESSIONS = 200
_LISTED_USERS = 64
_ACCEPTED_A_ROUND = 32
_NO_ROOM_S = 0.1
_OWNER_RESERVE = 16


class Supervisor:
    """One daemon: its listening socket, devices, sessions and compiler workers.

    `release_socket` is called before anything else ends.
    """

    def __init__(
        self, settings: DaemonSettings, listener: socket.socket, release_socket: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._sysfs = SysfsTree(Path(settings.sysfs)) if settings.sysfs else None
        if settings.failpoints:
            failpoints.configure(settings.failpoints)
        trust.readable(settings.kernels)  # it is there before a worker lets its processes read it
        self.reactor = Reactor()
        self._compilers = CompilerPool(self.reactor, settings.tuning, settings.limits.job_cpu_s)
        self._listener = listener
        self._release_socket = release_socket
        self._page = StatusPage(len(settings.devices))
        bans = BanPolicy(settings.tuning.ban_window_s)
        image_numbers = itertools.count(1)
        self.devices = [
            Device(info, self.reactor, self._page, settings, bans, image_numbers)
            for info in settings.device_infos()
        ]
        memory = sum(device.info.memory_total for device in self.devices)
        self._users = Users(settings.limits, memory, settings.allow_users, settings.allow_groups)
        self._services = Services(
            reactor=self.reactor,
            chores=Chores(self.reactor),
            devices=self.devices,
            compilers=self._compilers,
            users=self._users,
            limits=limits_for(settings),
            session_segments=settings.limits.session_segments,
            by_session=settings.isolate is Isolation.SESSION,
            strict=settings.is_strict,
            kernels=settings.kernels,
            shared=settings.is_shared,
            check=check_folder(),  # as it was; it may be gone later
        )
        self._leases = Leases(self.devices, settings.leased_only)
        self._rejected = RejectedConnections(self.reactor)
        self._clients: dict[int, Client] = {}
        self._injections = InjectionRegistry(self.devices, self._session_places)
        self._traces = TraceSessions(self.reactor, self._page, self.devices, settings.tuning.trace_silence_s)
        for device in self.devices:
            device.on_start = partial(self._announce, device)
            device.on_end = self._traces.engine_gone
            device.on_failed = self._end_sessions
            device.on_function_gone = self._injections.function_gone
        for injection in settings.injections():
            self._injections.add(injection)
        self._next_session = 1
        self._started = time.monotonic()
        self._idle: Timer | None = None

    @property
    def status_fd(self) -> int:
        return self._page.reader_fd

    @property
    def status_path(self) -> str:
        return self._page.proc_path

    # ------------------------------------------------------------ life

    def run(self) -> None:
        """Serve until `stop` is called; then end engines and workers and close everything."""
        try:
            self._page.lives.hold()
            for device in self.devices:
                device.start()
            self._compilers.start()
            if self._sysfs is not None:
                self._sysfs.begin(self.devices)
                self._sysfs.keep_current(self.reactor)
            untrusted_fds.prepare()
            self._listener.setblocking(False)
            self.reactor.watch(self._listener.fileno(), self._accept)
            self.reactor.run()
            if failpoints.active is not None:
                failpoints.hit("supervisor.end")
        finally:
            self.reactor.unwatch(self._listener.fileno())
            self._release_socket()
            self._close()

    def stop(self) -> None:
        """End `run` soon."""
        log.info("stopping")
        self.reactor.stop()

    def _close(self) -> None:
        timeout_s = self._settings.tuning.close_s
        # all of it, from the last line to the first, whatever one of them raises
        with ExitStack() as steps:
            steps.callback(self.reactor.close)
            steps.callback(self._page.close)
            steps.callback(self._injections.close)
            for device in self.devices:
                steps.callback(device.close, timeout_s)
            steps.callback(self._compilers.close, timeout_s)
            steps.callback(self._rejected.close)
            steps.callback(self._traces.close)
            for client in list(self._clients.values()):
                steps.callback(client.close, "the daemon stops")
            if self._sysfs is not None:
                steps.callback(self._sysfs.close)

    # ------------------------------------------------------------ clients

    def _accept(self) -> None:
        # the rest is accepted in the next round: a flood of connections must not starve the others
        for _ in range(_ACCEPTED_A_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # out of descriptors, most likely: the client stays in the backlog until some are free
                log.error("accept: %s", error)
                self.reactor.pause(self._listener.fileno(), _NO_ROOM_S)
                return
            try:
                self._welcome(connection)
            except BaseException:
                connection.close()
                raise
            self.watch_idle()

    def _welcome(self, connection: socket.socket) -> None:
        """Make a client of a connection, or refuse it."""
        if failpoints.active is not None:
            failpoints.hit("supervisor.connect")
        connection.setblocking(False)
        channel = Channel(connection)
        try:
            peer = linux.peer_of(connection)
            channel.owner = peer.uid
            user = self._users.admit(peer, connection)
            self._check_room(user)
        except Refused as error:
            self._rejected.refuse(channel, error.info)
            return
        number = self._next_session
        self._next_session += 1
        client = Client(
            number,
            peer.pid,
            user,
            channel,
            self,
            self._services,
            self._injections,
            self._traces,
            self._leases,
            self._settings.tuning.handshake_s,
        )
        with undoing() as undo:
            undo.callback(client.close, "it could not be served")
            self._clients[number] = client
            self._page.lives.begin(number)
            client.begin()

    def _check_room(self, user: User) -> None:
        user.connections.check()
        user.check_descriptors()
        user.handshakes.check()
        most = self._settings.max_clients
        reserved = 0 if user.may_command else min(_OWNER_RESERVE, most // 2)
        if len(self._clients) >= most - reserved:
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE,
                "connection",
                found=f"{len(self._clients)} connections of all users",
                expected=f"at most {most - reserved}",
                hint="close some, or start the daemon with a larger --max-clients",
            )

    def client_gone(self, number: int) -> None:
        """Remove a connection that has ended; everything it owned was given back."""
        if self._clients.pop(number, None) is not None:
            self._page.lives.end(number)
        self._injections.session_gone(number)
        self._traces.client_gone(number)
        self._leases.client_gone(number)
        self._users.drop_idle()
        self.watch_idle()

    def watch_idle(self) -> None:
        """Restart the idle time. It begins when the daemon is ready: nobody can connect before.

        Monitors do not count, or one that watches would keep every daemon forever. The client that started
        the daemon may need some time to connect, and a monitor that has come some time to ask.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if any(device.state is DeviceState.STARTING for device in self.devices):
            return
        if self._settings.idle_timeout_s > 0 and not self._in_use:
            waited_for = self._next_session == 1 or bool(self._clients)
            least_s = self._settings.tuning.first_client_s if waited_for else 0.0
            self._idle = self.reactor.after(max(least_s, self._settings.idle_timeout_s), self._end_idle)

    @property
    def _in_use(self) -> bool:
        """Whether any client other than monitors is connected."""
        return not all(client.only_looks for client in self._clients.values())

    def _announce(self, device: Device, function: VirtualFunction) -> None:
        """Send a new engine what other than its objects it has to know."""
        self._injections.announce_all(device, function)
        self._traces.announce(device.info, function)

    def _end_sessions(self, function: VirtualFunction, info: ErrorInfo) -> None:
        """End sessions with a context there, whose waits would never end."""
        for session in {context.session for context in function.contexts.values()}:
            if session in self._clients:  # else what is left of it has no client
                self._clients[session].end(info)

    def _session_places(self) -> dict[int, SessionPlace]:
        return {
            number: SessionPlace(client.pid, client.session.state.function_key)
            for number, client in self._clients.items()
            if client.session is not None
        }

    def _end_idle(self) -> None:
        if failpoints.active is not None:
            failpoints.hit("supervisor.idle")
        self._accept()
        if self._in_use:
            return  # one connected in this very moment, and keeps the daemon
        log.info("no client for %g s", self._settings.idle_timeout_s)
        self.stop()

    # ------------------------------------------------------------ answers about the whole daemon

    def welcome(self, hello: msg.Hello, session: int, devices: Sequence[int], check: str) -> msg.Welcome:
        """The answer to a handshake, with the devices of these numbers, which get those of the session.

        Refuses an interface that differs in the major version, and settings that are not this daemon's.
        """
        if hello.major != INTERFACE_MAJOR:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_VERSION,
                "firmware interface",
                found=f"{hello.client[:64]!r} speaks {hello.major}.{hello.minor}",
                expected=f"{INTERFACE_MAJOR}.x, as this daemon ({SERVER_NAME}, pid {os.getpid()}) does",
                hint=advice(INTERFACE_MAJOR, hello.major),
            )
        asked_settings.check(self._settings, hello.settings, is_leased=bool(hello.lease))
        return msg.Welcome(
            major=INTERFACE_MAJOR,
            minor=INTERFACE_MINOR,
            server=SERVER_NAME,
            pid=os.getpid(),
            session=session,
            devices=tuple(
                replace(self.devices[number].info, index=index) for index, number in enumerate(devices)
            ),
            limits=self._services.limits,
            check=check,
        )

    def status(self, user: User, devices: Sequence[int]) -> msg.StatusAnswer:
        """Return the state of the daemon and of these devices, of other users only what `user` may see."""
        sessions = self._sessions_for(user)

        def sees(key: FunctionKey) -> bool:
            return user.may_command or key.uid == user.uid

        users = self._users.status(lambda other: user.may_command or other is user)
        return msg.StatusAnswer(
            pid=os.getpid(),
            server=SERVER_NAME,
            socket=str(self._settings.socket),
            uptime_s=time.monotonic() - self._started,
            interface=f"{INTERFACE_MAJOR}.{INTERFACE_MINOR}",
            compiler_pids=self._compilers.pids,
            engines=tuple(self.devices[number].status(index, sees) for index, number in enumerate(devices)),
            session_count=len(sessions),
            sessions=tuple(session.status() for session in sessions[:_LISTED_SESSIONS]),
            users=users[:_LISTED_USERS],
            leases=self._leases.status() if user.may_command else (),
            internal_errors=self.reactor.errors.count
            + sum(self.devices[number].internal_errors(sees) for number in devices),
        )

    def activity(self, user: User, request: msg.Activity) -> msg.ActivityAnswer:
        """Return the activity of sessions, models and compilations; of other users if `user` may see it."""
        compilations = self._compilers.compilations()
        return activity_answer.build(request, self._sessions_for(user), self.devices, compilations)

    def _sessions_for(self, user: User) -> list[Session]:
        sessions = [client.session for client in self._clients.values() if client.session is not None]
        return [session for session in sessions if user.may_command or session.user is user]
