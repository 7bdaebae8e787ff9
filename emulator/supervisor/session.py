"""One client: what it owns, and what each of its requests does.

Every request is checked before it has an effect. A refusal is answered as `Failed`; the session goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softnpu.emulator.interface import linux, records
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.compiling import (
    Compiled,
    CompileJob,
    ExportJob,
    ImportJob,
    Job,
    OptionsJob,
    QueryJob,
    Result,
)
from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.interface.result import Fault, Refused, ZeResult, refuse
from softnpu.emulator.interface.weights import check_sources
from softnpu.emulator.supervisor.compilers import Compilation
from softnpu.emulator.supervisor.memory import PAGE, Allocation, check_request
from softnpu.emulator.supervisor.objects import PRIORITIES, Context, Graph, Queue

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

_CLIENT_NAME = 64  # characters: a name must not make the status answer too large for a frame
Post = Callable[[int, msg.Message, Sequence[int]], None]


@dataclass
class Owned:
    """An allocation and the context it belongs to."""

    context: Context
    allocation: Allocation


class Session:
    """The objects of one client, and the handlers of its requests."""

    def __init__(self, number: int, pid: int, client: str, supervisor: Supervisor, post: Post) -> None:
        limits = supervisor.limits
        self.number = number
        self.pid = pid
        self.client = client[:_CLIENT_NAME]
        self.memory_used = 0
        self._supervisor = supervisor
        self._post = post
        self._contexts: HandleTable[Context] = HandleTable(HandleKind.CONTEXT, limits.contexts)
        self._memory: HandleTable[Owned] = HandleTable(HandleKind.MEMORY, limits.allocations)
        self._queues: HandleTable[Queue] = HandleTable(HandleKind.QUEUE, limits.queues)
        self._graphs: HandleTable[Graph] = HandleTable(HandleKind.GRAPH, limits.graphs)
        self._compilations: dict[int, Compilation] = {}
        self._open = True

    # ------------------------------------------------------------ life

    def handle(self, packet: Packet, request: msg.Request) -> None:
        """Serves one request; raises `Refused` before any effect."""
        number = packet.request
        match request:
            case msg.ContextCreate():
                self._create_context(number, request)
            case msg.ContextDestroy():
                self._destroy_context(self._contexts.get(request.context))
                self._contexts.pop(request.context)
                self._post(number, msg.Ok(), ())
            case msg.MemAlloc():
                self._alloc(number, request)
            case msg.MemImport():
                self._import_memory(number, request, packet)
            case msg.MemFree():
                self._free(number, request)
            case msg.QueueCreate():
                self._create_queue(number, request)
            case msg.QueueWorkload():
                queue = self._queues.get(request.queue)
                queue.background = request.background
                queue.context.device.announce_workload(queue)
                self._post(number, msg.Ok(), ())
            case msg.QueueDestroy():
                self._destroy_queue(number, self._queues.pop(request.queue))
            case msg.GraphCreate():
                self._create_graph(number, request, packet)
            case msg.GraphImport():
                self._import_graph(number, request, packet)
            case msg.GraphBlob():
                self._tell_blob(number, self._graphs.get(request.graph))
            case msg.GraphExport():
                self._export_graph(number, self._graphs.get(request.graph))
            case msg.GraphQuery():
                self._query_graph(number, request, packet)
            case msg.CompilerOptions():
                self._tell_options(number, request)
            case msg.GraphInitialize():
                self._initialize_graph(number, self._graphs.get(request.graph))
            case msg.GraphDestroy():
                self._destroy_graph(self._graphs.pop(request.graph))
                self._post(number, msg.Ok(), ())
            case msg.Cancel():
                self._cancel(number, request)
            case msg.ContextMemory():
                context = self._contexts.get(request.context)
                total = context.device.info.memory_total
                answer = msg.ContextMemoryIs(total=total, allocated=context.memory.allocated)
                self._post(number, answer, ())
            case _:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    f"request {type(request).__name__}",
                    "not meant for an open session",
                    "a request on contexts, memory, queues or graphs",
                )

    def close(self) -> None:
        """The client is gone: abandons its compilations and gives back everything it owned."""
        if not self._open:
            return
        self._open = False
        for compilation in self._compilations.values():
            self._supervisor.compilers.abandon(compilation)
        self._compilations.clear()
        for context in self._contexts:
            self._destroy_context(context)

    def status(self) -> msg.SessionStatus:
        return msg.SessionStatus(
            session=self.number,
            pid=self.pid,
            client=self.client,
            role="session",
            memory_used=self.memory_used,
            contexts=len(self._contexts),
            allocations=len(self._memory),
            queues=len(self._queues),
            graphs=len(self._graphs),
        )

    # ------------------------------------------------------------ contexts

    def _create_context(self, number: int, request: msg.ContextCreate) -> None:
        devices = self._supervisor.devices
        if not 0 <= request.device < len(devices):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "context",
                f"device {request.device}",
                f"0 to {len(devices) - 1}",
            )
        self._contexts.check_room()
        device = devices[request.device]
        doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        context = Context(self._supervisor.next_context(), device, doorbell)
        try:
            device.add_context(context)
        except BaseException:
            context.close()
            raise
        context.handle = self._contexts.add(context)
        self._post(number, msg.ContextCreated(context=context.handle), [doorbell])

    def _destroy_context(self, context: Context) -> None:
        for graph in context.graphs.values():
            self._graphs.pop(graph.handle)
        for queue in context.queues.values():
            self._queues.pop(queue.handle)
        for handle in context.allocations:
            self._memory.pop(handle)
        # a queue of this context may still be on its way out: its ring is gone with the rest
        context.allocations.clear()
        size = context.memory.allocated

        def gone() -> None:
            self.memory_used -= size

        context.device.drop_context(context, gone)

    # ------------------------------------------------------------ memory

    def _alloc(self, number: int, request: msg.MemAlloc) -> None:
        context = self._contexts.get(request.context)
        check_request(request.kind, request.size, request.alignment)
        self._check_memory(context, request.size)
        self._supervisor.check_host_memory(request.size)
        allocation, fresh = context.memory.allocate(
            request.size, request.alignment, request.kind, request.exportable
        )
        handle = self._keep(context, allocation, fresh)
        answer = self._allocated(context, handle, fresh)
        fd = context.allocations[handle].segment.fd
        self._post(number, answer, [fd] if fresh else ())

    def _import_memory(self, number: int, request: msg.MemImport, packet: Packet) -> None:
        context = self._contexts.get(request.context)
        (fd,) = packet.take_fds(1)
        try:
            size = os.fstat(fd).st_size
            check_request(request.kind, size, 0)
            if not linux.has_seals(fd, linux.SEALS_FIXED_SIZE) or size % PAGE:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    "memory import",
                    f"a descriptor of {size} bytes that may change its size",
                    "the descriptor of an exportable allocation",
                )
            self._check_memory(context, size)
            allocation = context.memory.adopt(os.dup(fd), size, request.kind)
            handle = self._keep(context, allocation, fresh=True)
            self._post(number, self._allocated(context, handle, True), [fd])
        finally:
            os.close(fd)

    def _check_memory(self, context: Context, size: int) -> None:
        """Refuses what this session or its device has no room for."""
        self._memory.check_room()
        limit = self._supervisor.limits.session_memory
        if self.memory_used + size > limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                "memory allocation",
                f"{size} bytes asked for, this session has {self.memory_used}",
                f"at most {limit} bytes a session",
                "free memory, or start the daemon with a larger --session-memory",
            )
        context.device.check_memory(size, "memory allocation")

    def _keep(self, context: Context, allocation: Allocation, fresh: bool) -> int:
        """Gives an allocation its handle, counts it, and tells the engine."""
        size = allocation.size
        handle = self._memory.add(Owned(context, allocation))
        allocation.handle = handle
        context.allocations[handle] = allocation
        self.memory_used += size
        context.device.account(size)
        if fresh:
            context.device.announce_segment(context, allocation.segment.number)
        context.device.announce_memory(context, handle)
        return handle

    def _allocated(self, context: Context, handle: int, fresh: bool) -> msg.MemAllocated:
        allocation = context.allocations[handle]
        return msg.MemAllocated(
            memory=handle,
            segment=allocation.segment.number,
            segment_size=allocation.segment.size,
            offset=allocation.offset,
            fresh=fresh,
        )

    def _free(self, number: int, request: msg.MemFree) -> None:
        owned = [self._memory.get(handle) for handle in request.memory]
        rings = {queue.ring.handle for queue in self._queues}
        for handle in request.memory:
            if handle in rings:
                raise refuse(
                    ZeResult.ERROR_HANDLE_OBJECT_IN_USE,
                    f"memory {handle:#018x}",
                    "the ring of a live command queue",
                    "other memory",
                    "destroy the queue instead",
                )
        if len(set(request.memory)) != len(request.memory):
            raise refuse(ZeResult.ERROR_INVALID_ARGUMENT, "memory free", "a handle twice", "each handle once")
        for handle, item in zip(request.memory, owned, strict=True):
            self._release(handle, item)
        self._post(number, msg.Ok(), ())

    def _release(self, handle: int, item: Owned) -> None:
        context, allocation = item.context, item.allocation
        self._memory.pop(handle)
        del context.allocations[handle]
        self.memory_used -= allocation.size
        context.device.account(-allocation.size)
        context.device.drop_memory(context, (handle,))
        if context.memory.free(allocation):
            context.device.drop_segment(context, allocation.segment.number)

    # ------------------------------------------------------------ queues

    def _create_queue(self, number: int, request: msg.QueueCreate) -> None:
        context = self._contexts.get(request.context)
        slots = request.slots
        most = self._supervisor.limits.queue_slots
        if not records.MIN_SLOTS <= slots <= most or slots & (slots - 1):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "command queue",
                f"{slots} slots",
                f"a power of two from {records.MIN_SLOTS} to {most}",
            )
        if request.priority not in PRIORITIES:
            raise refuse(
                ZeResult.ERROR_INVALID_ENUMERATION,
                "command queue",
                f"priority {request.priority!r}",
                " or ".join(PRIORITIES),
            )
        self._queues.check_room()
        size = records.ring_size(slots)
        self._check_memory(context, size)
        allocation, fresh = context.memory.allocate(size, 0, "control")
        ring = self._keep(context, allocation, fresh)
        # where an older ring lay its header would look like submissions
        os.pwrite(allocation.segment.fd, bytes(records.RING_HEADER), allocation.offset)
        try:
            state = context.device.take_state()
        except Refused:
            self._release(ring, Owned(context, allocation))
            raise
        queue = Queue(context, allocation, slots, PRIORITIES[request.priority], request.turbo, state)
        queue.handle = self._queues.add(queue)
        context.queues[queue.handle] = queue
        context.device.announce_queue(queue)
        answer = msg.QueueCreated(queue=queue.handle, ring=self._allocated(context, ring, fresh))
        self._post(number, answer, [allocation.segment.fd] if fresh else ())

    def _destroy_queue(self, number: int, queue: Queue) -> None:
        context = queue.context
        del context.queues[queue.handle]

        def gone() -> None:
            # until now the engine may have written to the ring and to fences
            if queue.ring.handle in context.allocations:
                self._release(queue.ring.handle, Owned(context, queue.ring))
            self._post(number, msg.Ok(), ())

        context.device.drop_queue(queue, gone)

    # ------------------------------------------------------------ graphs

    def _create_graph(self, number: int, request: msg.GraphCreate, packet: Packet) -> None:
        context = self._check_compile(number, request.context)
        check_sources(request.weights, f"model '{request.name}'")
        fds = packet.take_fds(1 + len(request.weights))
        job = CompileJob(
            name=request.name,
            platform=context.device.info.platform,
            xml_length=request.xml_length,
            weights=request.weights,
            config=request.config,
            shapes=request.shapes,
            build_flags=request.build_flags,
            flags=request.flags,
            input_hash=request.input_hash,
            cache=request.cache,
        )
        self._compile(number, context, job, fds)

    def _import_graph(self, number: int, request: msg.GraphImport, packet: Packet) -> None:
        context = self._check_compile(number, request.context)
        check_sources(request.weights, "blob")
        fds = packet.take_fds(1 + (request.placement_length > 0) + len(request.weights))
        job = ImportJob(
            platform=context.device.info.platform,
            blob_length=request.blob_length,
            placement_length=request.placement_length,
            weights=request.weights,
        )
        self._compile(number, context, job, fds)

    def _tell_blob(self, number: int, graph: Graph) -> None:
        answer = graph.image.answer
        told = msg.GraphBlobIs(blob_length=answer.blob_length, placement_length=answer.placement_length)
        self._post(number, told, graph.image.blob_fds)

    def _export_graph(self, number: int, graph: Graph) -> None:
        self._check_job(number)
        answer = graph.image.answer
        job = ExportJob(
            blob_length=answer.blob_length,
            placement_length=answer.placement_length,
            weights=graph.image.weights,
        )
        self._run_job(number, job, [os.dup(fd) for fd in graph.image.fds])

    def _query_graph(self, number: int, request: msg.GraphQuery, packet: Packet) -> None:
        context = self._contexts.get(request.context)
        self._check_job(number)
        check_sources(request.weights, f"model '{request.name}'")
        job = QueryJob(
            name=request.name,
            platform=context.device.info.platform,
            xml_length=request.xml_length,
            weights=request.weights,
            build_flags=request.build_flags,
        )
        self._run_job(number, job, packet.take_fds(1 + len(request.weights)))

    def _tell_options(self, number: int, request: msg.CompilerOptions) -> None:
        self._check_job(number)
        devices = self._supervisor.devices
        if not 0 <= request.device < len(devices):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "compiler options",
                f"device {request.device}",
                f"0 to {len(devices) - 1}",
            )
        platform = devices[request.device].info.platform
        job = OptionsJob(platform=platform, option=request.option, value=request.value)
        self._run_job(number, job, [])

    def _check_compile(self, number: int, handle: int) -> Context:
        context = self._contexts.get(handle)
        self._graphs.check_room()
        self._check_job(number)
        return context

    def _check_job(self, number: int) -> None:
        """Refuses one more job for the compiler than a session may have under way."""
        limit = self._supervisor.limits.compiles
        if len(self._compilations) >= limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "graph",
                f"{limit} compilations of this session are under way",
                f"at most {limit}",
                "wait for one to end",
            )
        if number in self._compilations:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "graph",
                f"request id {number} is in use",
                "a fresh request id",
            )

    def _compile(self, number: int, context: Context, job: CompileJob | ImportJob, fds: list[int]) -> None:
        started = self._supervisor.clock()

        def on_done(answer: Result, made: list[int]) -> None:
            assert isinstance(answer, Compiled)
            try:
                self._contexts.get(context.handle)
                self._graphs.check_room()
            except Refused as error:
                for fd in made:
                    os.close(fd)
                self._post(number, msg.Failed(fault=error.fault), ())
                return
            sources = compilation.take_fds(len(job.weights))
            image = context.device.images.acquire(answer, job.weights, made + sources)
            graph = Graph(context, image)
            graph.handle = self._graphs.add(graph)
            context.graphs[graph.handle] = graph
            created = msg.GraphCreated(
                graph=graph.handle,
                blob_length=answer.blob_length,
                compile_ms=(self._supervisor.clock() - started) * 1e3,
                log=answer.log,
                origin=answer.origin,
            )
            self._post(number, created, image.fds[:1])

        compilation = self._start_job(number, job, fds, on_done)

    def _run_job(self, number: int, job: Job, fds: list[int]) -> None:
        """A job whose answer is the answer to the request."""

        def on_done(answer: Result, made: list[int]) -> None:
            try:
                self._post(number, answer, made)
            finally:
                for fd in made:
                    os.close(fd)

        self._start_job(number, job, fds, on_done)

    def _start_job(
        self, number: int, job: Job, fds: list[int], on_done: Callable[[Result, list[int]], None]
    ) -> Compilation:
        def done(answer: Result, made: list[int]) -> None:
            del self._compilations[number]
            on_done(answer, made)

        def failed(fault: Fault) -> None:
            del self._compilations[number]
            self._post(number, msg.Failed(fault=fault), ())

        compilation = Compilation(job, fds, lambda progress: self._post(number, progress, ()), done, failed)
        self._compilations[number] = compilation
        try:
            self._supervisor.compilers.submit(compilation)
        except OSError:
            del self._compilations[number]
            self._supervisor.compilers.abandon(compilation)
            raise
        return compilation

    def _cancel(self, number: int, request: msg.Cancel) -> None:
        compilation = self._compilations.pop(request.request, None)
        if compilation is not None:
            self._supervisor.compilers.abandon(compilation)
            fault = Fault(
                result=ZeResult.ERROR_NOT_AVAILABLE,
                object="compilation",
                found="cancelled by the client",
                hint="compile again",
            )
            self._post(request.request, msg.Failed(fault=fault), ())
        self._post(number, msg.Ok(), ())

    def _initialize_graph(self, number: int, graph: Graph) -> None:
        def told(fault: Fault | None, load_ms: float) -> None:
            if not self._open:
                return
            if fault is not None:
                self._post(number, msg.Failed(fault=fault), ())
                return
            if graph.handle in graph.context.graphs and not graph.initialized:
                graph.initialized = True
                graph.context.device.announce_graph(graph)
            self._post(number, msg.GraphInitialized(load_ms=load_ms, shared=load_ms == 0.0), ())

        graph.context.device.load(graph, told)

    def _destroy_graph(self, graph: Graph) -> None:
        del graph.context.graphs[graph.handle]
        graph.context.device.drop_graph(graph)
