"""The supervisor: accepts clients, routes their requests, watches clients and engines die."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from functools import partial

import psutil

from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.records import DeviceState
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR
from softnpu.emulator.supervisor.ban_policy import BanPolicy
from softnpu.emulator.supervisor.client import Client
from softnpu.emulator.supervisor.compilers import CompilerPool
from softnpu.emulator.supervisor.device import Device
from softnpu.emulator.supervisor.injection_registry import Faults
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.rejected_connections import RejectedConnections
from softnpu.emulator.supervisor.settings import DaemonSettings, limits_for
from softnpu.emulator.supervisor.status_page import StatusPage
from softnpu.emulator.supervisor.users import Peer, User, Users

log = logging.getLogger(__name__)

SERVER_NAME = "softnpu 0.1"
_LISTED_SESSIONS = 200
_HEADROOM = 256 * 1024 * 1024
_CHECKED_FROM = 16 * 1024 * 1024
_LISTED_USERS = 64
_ACCEPTED_A_ROUND = 32
_KEPT_FOR_THE_OWNER = 16
_CLOSE_S = 2.0
_FIRST_CLIENT_S = 5.0


class Supervisor:
    """One daemon: its listening socket, devices, sessions and compiler workers.

    `withdraw` gives up the socket path; it is called before anything else ends.
    """

    def __init__(
        self, settings: DaemonSettings, listener: socket.socket, withdraw: Callable[[], None]
    ) -> None:
        self.settings = settings
        if settings.failpoints:
            failpoints.configure(settings.failpoints)
        self.limits = limits_for(settings)
        self.reactor = Reactor()
        self.compilers = CompilerPool(self.reactor)
        self.clock = time.monotonic
        self._listener = listener
        self._withdraw = withdraw
        self._page = StatusPage(len(settings.devices))
        offenders = BanPolicy()
        self.devices = [
            Device(info, self.reactor, self._page, settings, offenders) for info in settings.device_infos()
        ]
        memory = sum(device.info.memory_total for device in self.devices)
        self.users = Users(settings.limits, memory, settings.allow_users, settings.allow_groups)
        self._turned_away = RejectedConnections(self.reactor)
        self._clients: dict[int, Client] = {}
        self.faults = Faults(self.devices, self._processes)
        for device in self.devices:
            device.on_start = partial(self.faults.announce_all, device)
        for injection in settings.injections():
            self.faults.add(injection)
        self._next_session = 1
        self._context_number = 0
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
        """Serves until `stop` is asked for; then ends engines and workers and closes everything."""
        try:
            for device in self.devices:
                device.start()
            self.compilers.start()
            self._listener.setblocking(False)
            self.reactor.watch(self._listener.fileno(), self._accept)
            self.reactor.run()
            if failpoints.active is not None:
                failpoints.hit("supervisor.end")
        finally:
            self.reactor.forget(self._listener.fileno())
            self._withdraw()
            self._close()

    def stop(self) -> None:
        """Ends `run` soon."""
        log.info("stopping")
        self.reactor.stop()

    def _close(self) -> None:
        for client in list(self._clients.values()):
            client.close("the daemon stops")
        self._turned_away.close()
        self.compilers.close(_CLOSE_S)
        for device in self.devices:
            device.close(_CLOSE_S)
        self.faults.close()
        self._page.close()
        self.reactor.close()

    # ------------------------------------------------------------ clients

    def _accept(self) -> None:
        # what waits longer is accepted in the next round: a flood of connections must not keep the others out
        for _ in range(_ACCEPTED_A_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # out of descriptors, most likely: the client stays in the backlog until some are free
                log.error("accept: %s", error)
                self.reactor.forget(self._listener.fileno())
                self.reactor.after(0.1, lambda: self.reactor.watch(self._listener.fileno(), self._accept))
                return
            try:
                if failpoints.active is not None:
                    failpoints.hit("supervisor.connect")
                self._welcome(connection)
            except MemoryError:
                log.error("accept: out of memory")
                connection.close()

    def _welcome(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        channel = Channel(connection)
        try:
            peer = Peer.of(connection)
            user = self.users.admit(peer, connection)
            self._check_room(user)
        except Refused as error:
            self._turned_away.refuse(channel, error.info)
            return
        except OSError as error:
            log.error("accept: %s", error)
            channel.close()
            return
        number = self._next_session
        self._next_session += 1
        self._clients[number] = Client(number, peer.pid, user, channel, self)
        self.watch_idle()

    def _check_room(self, user: User) -> None:
        user.connections.check()
        user.handshakes.check()
        most = self.settings.max_clients
        kept = 0 if user.commands else min(_KEPT_FOR_THE_OWNER, most // 2)
        if len(self._clients) >= most - kept:
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE,
                "connection",
                found=f"{len(self._clients)} connections of all users",
                expected=f"at most {most - kept}",
                hint="close some, or start the daemon with a larger --max-clients",
            )

    def client_gone(self, number: int) -> None:
        """A connection has ended and everything it owned is given back."""
        del self._clients[number]
        self.faults.session_gone(number)
        self.users.forget_idle()
        self.watch_idle()

    def watch_idle(self) -> None:
        """Counts the idle time anew. It begins when the daemon is ready: nobody can come before.

        Whoever had it started may need some time to come.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if any(device.state is DeviceState.STARTING for device in self.devices):
            return
        if self.settings.idle_timeout_s > 0 and not self._clients:
            least = _FIRST_CLIENT_S if self._next_session == 1 else 0.0
            self._idle = self.reactor.after(max(least, self.settings.idle_timeout_s), self._end_idle)

    def _processes(self) -> dict[int, int]:
        """The process of each session."""
        return {number: client.pid for number, client in self._clients.items() if client.session is not None}

    def _end_idle(self) -> None:
        if failpoints.active is not None:
            failpoints.hit("supervisor.idle")
        self._accept()
        if self._clients:
            return  # it came in this very moment, and keeps the daemon
        log.info("no client for %g s", self.settings.idle_timeout_s)
        self.stop()

    # ------------------------------------------------------------ what sessions ask of the whole

    def next_context(self) -> int:
        """A context number that was never used before."""
        self._context_number += 1
        return self._context_number

    def check_host_memory(self, size: int) -> None:
        """Refuses what the machine cannot back with pages: better an error now than the OOM killer."""
        if size < _CHECKED_FROM:
            return
        available = psutil.virtual_memory().available - _HEADROOM
        if size > available:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                "memory allocation",
                found=f"{size} bytes asked for",
                expected=f"at most {max(0, available)} bytes, what this machine has available",
            )

    def greet(self, hello: msg.Hello, session: int) -> msg.Welcome:
        """The answer to a handshake; refuses an interface that differs in the major version."""
        if hello.major != INTERFACE_MAJOR:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_VERSION,
                "firmware interface",
                found=f"{hello.client[:64]!r} speaks {hello.major}.{hello.minor}",
                expected=f"{INTERFACE_MAJOR}.x, as this daemon ({SERVER_NAME}) does",
                hint="install the same softnpu version on both sides",
            )
        return msg.Welcome(
            major=INTERFACE_MAJOR,
            minor=INTERFACE_MINOR,
            server=SERVER_NAME,
            pid=os.getpid(),
            session=session,
            devices=tuple(device.info for device in self.devices),
            limits=self.limits,
        )

    def status(self, asker: User) -> msg.StatusIs:
        """The state of the daemon, of other users only what the asker may see."""
        sessions = [
            client.session
            for client in self._clients.values()
            if client.session is not None and (asker.commands or client.user is asker)
        ]
        users = self.users.status(lambda user: asker.commands or user is asker)
        return msg.StatusIs(
            pid=os.getpid(),
            server=SERVER_NAME,
            socket=str(self.settings.socket),
            uptime_s=time.monotonic() - self._started,
            interface=f"{INTERFACE_MAJOR}.{INTERFACE_MINOR}",
            compiler_pids=self.compilers.pids,
            engines=tuple(device.status() for device in self.devices),
            session_count=len(sessions),
            sessions=tuple(session.status() for session in sessions[:_LISTED_SESSIONS]),
            users=users[:_LISTED_USERS],
        )


def raise_descriptor_limit() -> None:
    """A daemon holds descriptors for every session: lifts the soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
