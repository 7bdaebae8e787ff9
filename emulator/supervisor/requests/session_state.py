"""The shared state of a session's parts: the daemon's services, object tables, answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, Protocol

import msgspec

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.handles import HandleKind
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse
from softnpu.emulator.supervisor.chores import Chores
from softnpu.emulator.supervisor.compilers.pool import CompilerPool
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.limits import (
    SESSION_ADDRESS_SPACE,
    Account,
    CountedTable,
    Quota,
    address_space,
)
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.state.memory import Allocation
from softnpu.emulator.supervisor.state.objects import Context, Graph, Queue
from softnpu.emulator.supervisor.users import FunctionKey, User, Users

P = ParamSpec("P")
Post = Callable[[int, msg.Message, Sequence[int]], None]
"""Answer the request of this number, with descriptors that stay the caller's."""


class Answering(Protocol):
    """Serve a later part of the request of this number: whatever `serve` raises is its answer."""

    def __call__(
        self, request: int, serve: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None: ...


class Services(msgspec.Struct, frozen=True):
    """The services shared by all sessions of a daemon. `session_segments`: memory files per session.

    `by_session`: every session has a virtual function of its own. `strict`: the compiler refuses what silicon
    refuses. `kernels`: which own kernels run. `shared`: others than its user may use the daemon. `check`:
    where the notes of all its programs are, empty: nowhere.
    """

    reactor: Reactor
    chores: Chores
    devices: Sequence[Device]
    compilers: CompilerPool
    users: Users
    limits: msg.Limits
    session_segments: int
    by_session: bool = False
    strict: bool = False
    kernels: str = "all"
    shared: bool = False
    check: str = ""
    context_numbers: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1))


class Call(msgspec.Struct, frozen=True):
    """One request on its way. `worker_signal`: an injected fault for the compiler worker that serves it."""

    packet: Packet
    worker_signal: int = 0

    @property
    def number(self) -> int:
        return self.packet.request


class OwnedAllocation(msgspec.Struct):
    """An allocation and the context it belongs to."""

    context: Context
    allocation: Allocation


class SessionState:
    """The objects of one session. `open` until its client is gone.

    `devices`: those that it sees, as the daemon numbers them; the session numbers them from 0 on. `check`:
    where its notes are. One that is checked alone has its own engine, since an engine notes all or nothing.
    """

    def __init__(
        self,
        services: Services,
        session: int,
        user: User,
        devices: Sequence[int],
        reactor: Reactor,
        post: Post,
        end: Callable[[ErrorInfo], None],
        answering: Answering,
        check: str = "",
    ) -> None:
        limits = services.limits
        self.services = services
        self._devices = devices
        self.session = session
        self.check = check
        by_session = services.by_session or check != services.check
        self.function_key = FunctionKey(user.uid, session if by_session else 0)
        self.user = user
        self.reactor = reactor
        self.post = post
        self.end = end
        self.answering = answering
        self.open = True
        self.bytes = Account(user.memory)
        self.segments = Quota(
            services.session_segments,
            "session-segments",
            "segments",
            "this session",
            "memory allocation",
            above=(user.segments,),
        )
        self.address_space = address_space("this session", SESSION_ADDRESS_SPACE)
        self.contexts: CountedTable[Context] = CountedTable(
            HandleKind.CONTEXT, limits.contexts, "session-contexts", user.handles
        )
        self.memory: CountedTable[OwnedAllocation] = CountedTable(
            HandleKind.MEMORY, limits.allocations, "session-allocations", user.handles
        )
        self.queues: CountedTable[Queue] = CountedTable(
            HandleKind.QUEUE, limits.queues, "session-queues", user.handles, user.queues
        )
        self.graphs: CountedTable[Graph] = CountedTable(
            HandleKind.GRAPH, limits.graphs, "session-graphs", user.handles, user.graphs
        )

    @property
    def memory_used(self) -> int:
        """Bytes of all its contexts, also of those that the engine has yet to drop."""
        return self.bytes.used

    def close(self) -> None:
        """Stop counting its handles, except of memory, which is freed in parts."""
        for table in (self.contexts, self.queues, self.graphs):
            table.close()

    def device(self, index: int, object: str) -> Device:
        """Return the device with this number in the session; refuses one that it does not see."""
        if not 0 <= index < len(self._devices):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                object,
                found=f"device {index}",
                expected=f"0 to {len(self._devices) - 1}",
            )
        return self.services.devices[self._devices[index]]

    def check_memory(self, context: Context, size: int) -> None:
        """Refuse `size` more bytes that this session, its user or the device has no room for."""
        limit = self.services.limits.session_memory
        if self.memory_used + size > limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                "memory allocation",
                found=f"{size} bytes asked for, this session has {self.memory_used}",
                expected=f"at most {limit} bytes a session",
                hint="free memory, or start the daemon with a larger --session-memory",
            )
        self.device_of(context).check_memory(size, "memory allocation")
        self.user.memory.check(size)

    def check_address_space(self, context: Context, size: int) -> None:
        """Refuse sparse memory that the address space of the engine has no room for."""
        self.address_space.check(size)
        self.function_of(context).address_space.check(size)

    def device_of(self, context: Context) -> Device:
        """Return the device that a context of this session is on."""
        return self.services.devices[context.device]

    def function_of(self, context: Context) -> VirtualFunction:
        """Return the virtual function that a context of this session is on."""
        return self.device_of(context).function(self.function_key)

    def answer_ok(self, call: Call) -> None:
        """Answer a request that returns nothing."""
        self.post(call.number, msg.Ok(), ())

    def count(self, context: Context) -> None:
        """Update the account of a context."""
        context.count()
        if trace.active is not None:
            trace.active.counter("memory", self.memory_used, self.session)
