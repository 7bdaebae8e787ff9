"""The session of one client: its objects, and the dispatch of its requests.

Every request is checked before it has an effect. A refusal is answered as `Failed`; the session goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

from softnpu.emulator.common.model_texts import listed
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.activity_messages import SessionPhase
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links.engine import QueuePause
from softnpu.emulator.supervisor.engines.ban_policy import ban_key
from softnpu.emulator.supervisor.held_descriptors import HeldDescriptor, check_left
from softnpu.emulator.supervisor.limits import Account
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.requests.graph_requests import GraphRequests
from softnpu.emulator.supervisor.requests.memory_requests import MemoryRequests
from softnpu.emulator.supervisor.requests.metric_streams import MetricRequests
from softnpu.emulator.supervisor.requests.queue_requests import QueueRequests
from softnpu.emulator.supervisor.requests.session_state import Answering, Call, Post, Services, SessionState
from softnpu.emulator.supervisor.state.helper_socket import HelperSocket, check_room
from softnpu.emulator.supervisor.state.images import ImageState
from softnpu.emulator.supervisor.state.memory import ContextMemory
from softnpu.emulator.supervisor.state.objects import Context
from softnpu.emulator.supervisor.state.usage import QueueUsage, SessionUsage
from softnpu.emulator.supervisor.undoing import undoing
from softnpu.emulator.supervisor.users import User

_LISTED_MODELS = 16
_CLIENT_NAME = 64  # bytes: a name must not make the status answer too large for a frame
R = TypeVar("R", bound=msg.Request)


class Session:
    """The session of one client; hands its requests to the parts that serve them."""

    def __init__(
        self,
        number: int,
        pid: int,
        start_time: int,
        client: str,
        services: Services,
        user: User,
        devices: Sequence[int],
        reactor: Reactor,
        post: Post,
        end: Callable[[ErrorInfo], None],
        answering: Answering,
        check: str,
    ) -> None:
        self.number = number
        self.pid = pid
        self._start_time = start_time
        self.client = listed(client, _CLIENT_NAME)
        self.user = user
        self.usage = SessionUsage()
        self._began = time.monotonic()
        self._ban_key = ban_key(pid, number)
        self.state = SessionState(services, number, user, devices, reactor, post, end, answering, check)
        self.memory = MemoryRequests(self.state)
        self.queues = QueueRequests(self.state, self.memory)
        self.graphs = GraphRequests(self.state, number)
        self.metrics = MetricRequests(self.state)

    def handle(self, call: Call, request: msg.Request) -> None:
        """Serve one request; raise `Refused` before any effect."""
        route = _ROUTES.get(type(request))
        if route is None:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"request {type(request).__name__}",
                found="not meant for an open session",
                expected="a request on contexts, memory, queues or graphs",
            )
        route.handler(self)(call, request)

    def device_index(self, request: msg.Request) -> int | None:
        """Return the device that a request concerns; None if it concerns none, or names an unknown object."""
        route = _ROUTES.get(type(request))
        if route is None:
            return None
        try:
            device: int | None = route.device(self.state, request)
        except Refused:
            return None
        return device

    def close(self) -> None:
        """Abandon compilations and give back everything the client owned: it is gone."""
        state = self.state
        if not state.open:
            return
        state.open = False
        with ExitStack() as steps:
            steps.callback(state.close)
            for context in state.contexts:
                steps.callback(self._destroy_context, context, state.services.users.drop_idle)
            steps.callback(self.graphs.close)

    def status(self) -> msg.SessionStatus:
        """Return the session's holdings."""
        state = self.state
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

    def activity(self) -> msg.SessionActivity:
        """Return the session's holdings and device activity."""
        state = self.state
        queues = self.usage.queues()
        total = self.usage.total(queues)
        images = {graph.image.number: graph.image for graph in state.graphs}
        loading = any(image.state is ImageState.LOADING for image in images.values())
        return msg.SessionActivity(
            session=self.number,
            pid=self.pid,
            start_time=self._start_time,
            client=self.client,
            uid=self.user.uid,
            age_s=time.monotonic() - self._began,
            state=_phase(total, self.graphs.compiling, loading).value,
            memory_used=state.memory_used,
            contexts=len(state.contexts),
            allocations=len(state.memory),
            queues=len(state.queues),
            graphs=len(state.graphs),
            busy_ns=total.spent_ns,
            submissions=total.completed,
            inferences=total.inferences,
            queued=total.waiting,
            devices=tuple(sorted({context.device for context in state.contexts})),
            models=tuple(sorted(images)[:_LISTED_MODELS]),
        )

    # ------------------------------------------------------------ requests on contexts

    def create_context(self, call: Call, request: msg.ContextCreate) -> None:
        state = self.state
        device = state.device(request.device, "context")
        state.contexts.check_room()
        state.segments.check()
        function = device.open_function(state.function_key, self.user.functions, self._ban_key, state.check)
        context = Context(
            next(state.services.context_numbers),
            device.info.index,
            session=self.number,
            ban_key=self._ban_key,
            usage=self.usage,
            bytes=Account(state.bytes, function.memory),
            segments=Account(state.segments),
            address_space=Account(state.address_space, function.address_space),
            memory=ContextMemory(guarded=bool(state.check)),
        )
        with undoing() as undo:
            undo.callback(self._destroy_context, context, state.services.users.drop_idle)
            context.doorbell = HeldDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            check_left(context.doorbell)
            state.count(context)
            function.add_context(context)
            context.handle = state.contexts.add(context)
            device.function_changed()
            state.post(call.number, msg.ContextCreated(context=context.handle), [context.doorbell])

    def open_helper(self, call: Call, request: msg.KernelHelperOpen) -> None:
        """Announce a helper for kernels of the client."""
        context = self.state.contexts.get(request.context)
        check_room(context.helpers)
        self.state.segments.check()
        with undoing() as undo:
            helper, theirs = HelperSocket.open()
            undo.callback(helper.close)
            with theirs:
                check_left(theirs.fileno())
                context.helpers[helper.name] = helper
                undo.callback(self.state.count, context)
                undo.callback(context.helpers.pop, helper.name)
                self.state.count(context)
                self.state.post(call.number, msg.KernelHelperOpened(helper=helper.name), [theirs.fileno()])

    def answer_memory(self, call: Call, request: msg.ContextMemory) -> None:
        context = self.state.contexts.get(request.context)
        self.memory.count_pages()
        images = {
            graph.image.number: graph.image
            for graph in context.graphs.values()
            if graph.initialized and graph.image.state is not ImageState.EVICTED
        }
        answer = msg.ContextMemoryAnswer(
            total=self.state.device_of(context).info.memory_total,
            allocated=context.memory.allocated,
            graphs=sum(image.size for image in images.values()),
        )
        self.state.post(call.number, answer, ())

    def release_memory(self, call: Call, request: msg.ContextRelease) -> None:
        context = self.state.contexts.get(request.context)
        self.state.function_of(context).idle.release(context)
        self.state.answer_ok(call)

    def set_idle(self, call: Call, request: msg.ContextIdle) -> None:
        """Choose when the context gives back memory by itself."""
        context = self.state.contexts.get(request.context)
        if request.after_ms is not None and request.after_ms < 0:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "idle time",
                found=f"{request.after_ms} ms",
                expected="0 or more, or none",
            )
        idle = context.idle
        idle.chosen, idle.enabled = True, request.after_ms is not None
        idle.after_ms = request.after_ms or 0
        self.state.function_of(context).idle.watch_anew()
        self.state.answer_ok(call)

    def destroy_context(self, call: Call, request: msg.ContextDestroy) -> None:
        context = self.state.contexts.get(request.context)
        self._destroy_context(context, partial(self.state.answer_ok, call))

    def _destroy_context(self, context: Context, on_freed: Callable[[], object]) -> None:
        """Destroy a context; call `on_freed` once its memory is freed."""
        state = self.state
        state.contexts.discard(context.handle)
        self.metrics.drop_context(context)
        for graph in context.graphs.values():
            state.graphs.discard(graph.handle)
        for queue in context.queues.values():
            state.queues.discard(queue.handle)
        # after the engine has heard of it, which may still drain a queue: the ring goes with the rest
        allocations, context.allocations = context.allocations, {}
        on_dropped = state.reactor.guarded(state.services.users.drop_idle)
        state.function_of(context).drop_context(context, on_dropped)
        # an image that others use may be loaded only now: the engine must not hear of a graph of this context
        context.graphs.clear()
        self.memory.end(context, allocations, on_freed)


def _phase(total: QueueUsage, compiling: bool, loading: bool) -> SessionPhase:
    """Return the phase of a session: the one nearest to a result first."""
    if total.running or total.pause == QueuePause.PACE:
        return SessionPhase.RUNNING
    if compiling:
        return SessionPhase.COMPILE
    if loading or total.pause == QueuePause.LOAD:
        return SessionPhase.LOAD
    if total.pause == QueuePause.EVENT:
        return SessionPhase.EVENT
    return SessionPhase.TURN if total.waiting else SessionPhase.IDLE


class _Route(NamedTuple):
    """The server of a request, and the device it concerns."""

    handler: Callable[[Session], Callable[[Call, Any], None]]
    device: Callable[[SessionState, Any], int | None]


def _route(
    request: type[R],
    handler: Callable[[Session], Callable[[Call, R], None]],
    device: Callable[[SessionState, R], int | None],
) -> tuple[type[msg.Request], _Route]:
    route: tuple[type[Any], _Route] = (request, _Route(handler, device))
    return route


_OnContext = (
    msg.ContextDestroy
    | msg.ContextMemory
    | msg.ContextRelease
    | msg.ContextIdle
    | msg.MemAlloc
    | msg.MemImport
    | msg.MemImportPart
    | msg.QueueCreate
    | msg.GraphCreate
    | msg.GraphImport
    | msg.GraphQuery
    | msg.GraphExpected
    | msg.MetricStreamOpen
    | msg.KernelHelperOpen
)
_OnQueue = msg.QueueWorkload | msg.QueueDestroy
_OnGraph = msg.GraphBlob | msg.GraphExport | msg.GraphInitialize | msg.GraphDestroy


def _of_request(state: SessionState, request: msg.ContextCreate | msg.CompilerOptions) -> int:
    return state.device(request.device, "request").info.index


def _of_context(state: SessionState, request: _OnContext) -> int:
    return state.contexts.get(request.context).device


def _of_memory(state: SessionState, request: msg.MemFree) -> int:
    return state.memory.get(request.memory[0] if request.memory else 0).context.device


def _of_queue(state: SessionState, request: _OnQueue) -> int:
    return state.queues.get(request.queue).context.device


def _of_graph(state: SessionState, request: _OnGraph) -> int:
    return state.graphs.get(request.graph).context.device


def _of_none(_state: SessionState, _request: msg.Cancel | msg.MetricStreamClose) -> None:
    return None


_ROUTES: dict[type[msg.Request], _Route] = dict(
    (
        _route(msg.ContextCreate, lambda s: s.create_context, _of_request),
        _route(msg.ContextDestroy, lambda s: s.destroy_context, _of_context),
        _route(msg.ContextMemory, lambda s: s.answer_memory, _of_context),
        _route(msg.ContextRelease, lambda s: s.release_memory, _of_context),
        _route(msg.ContextIdle, lambda s: s.set_idle, _of_context),
        _route(msg.MemAlloc, lambda s: s.memory.alloc, _of_context),
        _route(msg.MemImport, lambda s: s.memory.import_segment, _of_context),
        _route(msg.MemImportPart, lambda s: s.memory.import_part, _of_context),
        _route(msg.MemFree, lambda s: s.memory.free, _of_memory),
        _route(msg.QueueCreate, lambda s: s.queues.create, _of_context),
        _route(msg.QueueWorkload, lambda s: s.queues.set_workload, _of_queue),
        _route(msg.QueueDestroy, lambda s: s.queues.destroy, _of_queue),
        _route(msg.GraphCreate, lambda s: s.graphs.create, _of_context),
        _route(msg.GraphImport, lambda s: s.graphs.import_blob, _of_context),
        _route(msg.GraphBlob, lambda s: s.graphs.answer_blob, _of_graph),
        _route(msg.GraphExport, lambda s: s.graphs.export, _of_graph),
        _route(msg.GraphQuery, lambda s: s.graphs.query, _of_context),
        _route(msg.CompilerOptions, lambda s: s.graphs.answer_options, _of_request),
        _route(msg.GraphExpected, lambda s: s.graphs.expect, _of_context),
        _route(msg.GraphInitialize, lambda s: s.graphs.initialize, _of_graph),
        _route(msg.GraphDestroy, lambda s: s.graphs.destroy, _of_graph),
        _route(msg.MetricStreamOpen, lambda s: s.metrics.open, _of_context),
        _route(msg.MetricStreamClose, lambda s: s.metrics.close, _of_none),
        _route(msg.KernelHelperOpen, lambda s: s.open_helper, _of_context),
        _route(msg.Cancel, lambda s: s.graphs.cancel, _of_none),
    )
)
