"""The users behind the connections: admission, holdings and limits.

A user is a uid, as the kernel reports it for the peer of a socket (`SO_PEERCRED`). The owner of the daemon
and root may always connect and may command it; others may if the owner allows them, and they only use it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from softnpu.emulator.common import linux, untrusted_fds
from softnpu.emulator.common.linux import Credentials
from softnpu.emulator.interface.messages import UserStatus
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.supervisor.descriptors_in_flight import UserFlights, user_descriptors
from softnpu.emulator.supervisor.limits import SEGMENTS_IN_ALL, Quota, ResourceLimits, loads
from softnpu.emulator.supervisor.reactor import ChildShare

_UNREAD_BYTES = 64 * 1024 * 1024
_METRIC_STREAMS = 16
_UNMAPPING = 64  # each is tried again every few milliseconds
_DELAYED = 64


class FunctionKey(NamedTuple):
    """The owner of a virtual function: a user, or one session of it (0: all of them)."""

    uid: int
    session: int = 0

    @property
    def share(self) -> ChildShare:
        """The share of the reactor of the engines that this user has."""
        return ChildShare(self.uid)

    def __str__(self) -> str:
        return f"session {self.session} of user {self.uid}" if self.session else f"user {self.uid}"


class User:
    """The holdings of one user, over all its connections.

    `may_command`: it may stop the daemon and inject faults. `memory` is its limit in bytes, `everybody`
    counts the segments of all users.
    """

    def __init__(
        self, uid: int, may_command: bool, limits: ResourceLimits, memory: int, everybody: Quota
    ) -> None:
        whose = f"user {uid}"

        def quota(name: str, what: str, object: str, result: ZeResult, limit: int = 0) -> Quota:
            return Quota(limit or getattr(limits, name), name.replace("_", "-"), what, whose, object, result)

        host, busy = ZeResult.ERROR_OUT_OF_HOST_MEMORY, ZeResult.ERROR_NOT_AVAILABLE
        self.uid = uid
        self.may_command = may_command
        self.unread = Quota(_UNREAD_BYTES, "", "bytes of unread answers", whose, "connection", busy)
        self.connections = quota("user_connections", "connections", "connection", busy)
        self.handshakes = quota("user_handshakes", "connections without a hello", "connection", busy)
        self.sessions = quota("user_sessions", "sessions", "session", busy)
        self.handles = quota("user_handles", "handles", "handle", host)
        self.queues = quota("user_queues", "queues", "command queue", host)
        self.graphs = quota("user_graphs", "graphs", "graph", host)
        self.streams = Quota(_METRIC_STREAMS, "", "metric streams", whose, "metric streamer", host)
        what = "allocations that wait for addresses"
        self.unmapping = Quota(_UNMAPPING, "", what, whose, "memory allocation", host)
        what = "queues of throttled processes that wait to be created"
        self.delayed = Quota(_DELAYED, "", what, whose, "command queue", host)
        self.loads = loads(limits.user_graphs, "user-graphs", whose)
        self.compiles = quota("user_compiles", "jobs of the compiler under way", "graph", host)
        self.memory = quota(
            "user_memory", "bytes", "memory allocation", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, memory
        )
        self.flights = UserFlights(user_descriptors())
        self.functions = quota("user_functions", "virtual functions", "context", host)
        segments = limits.segments_of_user()
        self.segments = Quota(
            segments, "user-segments", "segments", whose, "memory allocation", host, above=(everybody,)
        )

    @property
    def _quotas(self) -> list[Quota]:
        return [value for value in vars(self).values() if isinstance(value, Quota)]

    @property
    def idle(self) -> bool:
        """Whether this user holds nothing at all."""
        return not (any(quota.used for quota in self._quotas) or self.flights.used)

    def check_descriptors(self) -> None:
        """Refuse further descriptors while too many hang in their file systems."""
        if untrusted_fds.are_stuck(self.uid):
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE,
                "descriptors",
                found=f"files of user {self.uid} cannot be closed: their file system does not answer",
                expected="file systems that answer",
                hint="unmount it (umount -f), or have its server go on",
            )

    def check_commands(self, object: str) -> None:
        """Refuse what only the owner of the daemon and root may ask for."""
        if not self.may_command:
            raise refuse(
                ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                object,
                found=f"user {self.uid}",
                expected=f"user {os.getuid()}, the owner of the daemon, or root",
                hint="ask the owner of the daemon",
            )

    def status(self) -> UserStatus:
        """Return the user's holdings."""
        return UserStatus(
            uid=self.uid,
            connections=self.connections.used,
            sessions=self.sessions.used,
            memory_used=self.memory.used,
            handles=self.handles.used,
            queues=self.queues.used,
            graphs=self.graphs.used,
            compiles=self.compiles.used,
            refusals=sum(quota.refusals for quota in self._quotas) + self.flights.refusals,
        )


class Users:
    """The users of one daemon that hold anything, and who is allowed to be one."""

    def __init__(
        self, limits: ResourceLimits, memory: int, allowed: tuple[int, ...], groups: tuple[int, ...]
    ) -> None:
        self._limits = limits
        self._allowed = frozenset(allowed)
        self._groups = frozenset(groups)
        self._memory = limits.user_memory or (memory * 3 // 4 if allowed or groups else memory)
        self._users: dict[int, User] = {}
        self._segments = Quota(SEGMENTS_IN_ALL, "", "segments", "all users", "memory allocation")

    def admit(self, peer: Credentials, connection: socket.socket) -> User:
        """Return the user of a new connection; refuses one whom the owner has not allowed."""
        may_command = peer.uid in (os.getuid(), 0)
        if not may_command and peer.uid not in self._allowed and not self._in_allowed_group(connection):
            raise refuse(
                ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                "connection",
                found=f"user {peer.uid}",
                expected=f"user {os.getuid()}, who owns the daemon, root, or a user whom the owner allowed",
                hint=f"ask its owner to start it with --allow-user {peer.uid}, or start your own daemon",
            )
        user = self._users.get(peer.uid)
        if user is None:
            user = User(peer.uid, may_command, self._limits, self._memory, self._segments)
            self._users[peer.uid] = user
        return user

    def _in_allowed_group(self, connection: socket.socket) -> bool:
        return bool(self._groups) and not self._groups.isdisjoint(linux.groups_of_peer(connection))

    def drop_idle(self) -> None:
        """Drop the users who hold nothing."""
        for user in [user for user in self._users.values() if user.idle]:
            del self._users[user.uid]

    def status(self, visible: Callable[[User], bool]) -> tuple[UserStatus, ...]:
        """Return the users' holdings, by uid."""
        return tuple(self._users[uid].status() for uid in sorted(self._users) if visible(self._users[uid]))
