"""One client: what it owns, and what becomes of each of its requests.

Every request is checked before it has an effect. A refusal is answered as `Failed`; the session goes on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.ban_policy import identity
from softnpu.emulator.supervisor.graph_requests import GraphRequests
from softnpu.emulator.supervisor.memory_requests import MemoryRequests
from softnpu.emulator.supervisor.objects import Context
from softnpu.emulator.supervisor.queue_requests import QueueRequests
from softnpu.emulator.supervisor.session_state import Post, SessionState
from softnpu.emulator.supervisor.users import User

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.supervisor import Supervisor

_CLIENT_NAME = 64  # bytes: a name must not make the status answer too large for a frame


class Session:
    """The session of one client; hands its requests to the parts that serve them."""

    def __init__(
        self, number: int, pid: int, client: str, supervisor: Supervisor, user: User, post: Post
    ) -> None:
        self.number = number
        self.pid = pid
        self.client = client.encode()[:_CLIENT_NAME].decode(errors="ignore")
        self._owner = identity(pid, number)
        self.user = user
        self._state = SessionState(supervisor, user, post)
        self._memory = MemoryRequests(self._state)
        self._queues = QueueRequests(self._state, self._memory)
        self._graphs = GraphRequests(self._state, number)

    def handle(self, packet: Packet, request: msg.Request) -> None:
        """Serves one request; raises `Refused` before any effect."""
        number, state = packet.request, self._state
        match request:
            case msg.ContextCreate():
                self._create_context(number, request)
            case msg.ContextDestroy():
                self._destroy_context(state.contexts.get(request.context))
                state.contexts.pop(request.context)
                state.post(number, msg.Ok(), ())
            case msg.ContextMemory():
                self._tell_memory(number, state.contexts.get(request.context))
            case msg.MemAlloc():
                self._memory.alloc(number, request)
            case msg.MemImport():
                self._memory.import_segment(number, request, packet)
            case msg.MemFree():
                self._memory.free(number, request)
            case msg.QueueCreate():
                self._queues.create(number, request)
            case msg.QueueWorkload():
                self._queues.set_workload(number, request)
            case msg.QueueDestroy():
                self._queues.destroy(number, state.queues.pop(request.queue))
            case msg.GraphCreate():
                self._graphs.create(number, request, packet)
            case msg.GraphImport():
                self._graphs.import_blob(number, request, packet)
            case msg.GraphBlob():
                self._graphs.tell_blob(number, state.graphs.get(request.graph))
            case msg.GraphExport():
                self._graphs.export(number, request, packet)
            case msg.GraphQuery():
                self._graphs.query(number, request, packet)
            case msg.CompilerOptions():
                self._graphs.tell_options(number, request)
            case msg.GraphInitialize():
                self._graphs.initialize(number, state.graphs.get(request.graph))
            case msg.GraphDestroy():
                self._graphs.destroy(state.graphs.pop(request.graph))
                state.post(number, msg.Ok(), ())
            case msg.Cancel():
                self._graphs.cancel(number, request)
            case _:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    f"request {type(request).__name__}",
                    found="not meant for an open session",
                    expected="a request on contexts, memory, queues or graphs",
                )

    def close(self) -> None:
        """The client is gone: abandons its compilations and gives back everything it owned."""
        if not self._state.open:
            return
        self._state.open = False
        self._graphs.close()
        for context in self._state.contexts:
            self._destroy_context(context)
            self._state.contexts.pop(context.handle)

    def device_of(self, request: msg.Request) -> int | None:
        """The device on which a request acts, None if on none, or on nothing that there is."""
        state = self._state
        try:
            match request:
                case msg.ContextCreate() | msg.CompilerOptions():
                    return request.device
                case msg.QueueWorkload() | msg.QueueDestroy():
                    context = state.queues.get(request.queue).context
                case msg.GraphBlob() | msg.GraphExport() | msg.GraphInitialize() | msg.GraphDestroy():
                    context = state.graphs.get(request.graph).context
                case msg.MemFree():
                    context = state.memory.get(request.memory[0] if request.memory else 0).context
                case (
                    msg.ContextDestroy()
                    | msg.ContextMemory()
                    | msg.MemAlloc()
                    | msg.MemImport()
                    | msg.QueueCreate()
                    | msg.GraphCreate()
                    | msg.GraphImport()
                    | msg.GraphQuery()
                ):
                    context = state.contexts.get(request.context)
                case _:
                    return None
        except Refused:
            return None
        return context.device.info.index

    def status(self) -> msg.SessionStatus:
        """What the session holds."""
        state = self._state
        return msg.SessionStatus(
            session=self.number,
            pid=self.pid,
            client=self.client,
            role="session",
            memory_used=state.memory_used,
            contexts=len(state.contexts),
            allocations=len(state.memory),
            queues=len(state.queues),
            graphs=len(state.graphs),
            uid=self.user.uid,
        )

    def _create_context(self, number: int, request: msg.ContextCreate) -> None:
        state = self._state
        devices = state.supervisor.devices
        if not 0 <= request.device < len(devices):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "context",
                found=f"device {request.device}",
                expected=f"0 to {len(devices) - 1}",
            )
        state.contexts.check_room()
        device = devices[request.device]
        device.penalties.check(self._owner, "context")
        doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        number_of = state.supervisor.next_context()
        context = Context(number_of, device, doorbell, session=self.number, owner=self._owner)
        try:
            device.add_context(context)
        except BaseException:
            context.close()
            raise
        context.handle = state.contexts.add(context)
        state.post(number, msg.ContextCreated(context=context.handle), [doorbell])

    def _tell_memory(self, number: int, context: Context) -> None:
        images = {graph.image.number: graph.image for graph in context.graphs.values() if graph.initialized}
        told = msg.ContextMemoryIs(
            total=context.device.info.memory_total,
            allocated=context.memory.allocated,
            graphs=sum(image.size for image in images.values()),
        )
        self._state.post(number, told, ())

    def _destroy_context(self, context: Context) -> None:
        state = self._state
        for graph in context.graphs.values():
            state.graphs.pop(graph.handle)
        for queue in context.queues.values():
            state.queues.pop(queue.handle)
        for handle in context.allocations:
            state.memory.pop(handle)
        # a queue of this context may still be on its way out: its ring is gone with the rest
        context.allocations.clear()
        size, segments = context.memory.allocated, len(context.memory.segments)

        def gone() -> None:
            state.count_memory(-size, -segments)
            state.supervisor.users.forget_idle()

        context.device.drop_context(context, gone)
        # an image that others use may be loaded only now: the engine must not hear of a graph of this context
        context.graphs.clear()
