"""The requests of a session on graphs: jobs for the compiler workers, and images on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from softnpu.emulator.blob.weights import check_sources
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface import frames, trace
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.records import Latency, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links.compiler import (
    Compiled,
    CompileJob,
    ExportJob,
    ImportJob,
    Job,
    OptionsJob,
    QueryJob,
    Result,
    job_of,
)
from softnpu.emulator.supervisor.compilers.pool import Compilation
from softnpu.emulator.supervisor.limits import Account, loads
from softnpu.emulator.supervisor.parked_files import park
from softnpu.emulator.supervisor.requests.session_state import Call, SessionState
from softnpu.emulator.supervisor.state.objects import Context, Graph
from softnpu.emulator.supervisor.undoing import duplicates, move, undoing

_LATENCIES = {msg.GraphOrigin.CACHE.value: Latency.CACHE, msg.GraphOrigin.NATIVE.value: Latency.NATIVE}

_HINT_BYTES = 32


class GraphRequests:
    """The graphs of a session, and its compilations in progress."""

    def __init__(self, state: SessionState, session: int) -> None:
        self._state = state
        self._owner = (state.user.uid, session)
        self._strict, self._kernels = state.services.strict, state.services.kernels
        self._compilations: dict[int, Compilation] = {}
        self._account = Account(state.user.compiles)
        most, above = state.services.limits.graphs, (state.user.loads,)
        self._loads = loads(most, "session-graphs", "this session", above)

    def close(self) -> None:
        """Abandon all compilations: the client is gone."""
        for compilation in self._compilations.values():
            self._state.services.compilers.abandon(compilation)
        self._compilations.clear()
        self._account.close()

    @property
    def compiling(self) -> bool:
        """Whether a job of this session is under way."""
        return bool(self._compilations)

    def create(self, call: Call, request: msg.GraphCreate) -> None:
        context = self._check_compile(call.number, request.context)
        check_sources(request.weights, f"model '{request.name}'")
        fds = call.packet.check_fds(1 + len(request.weights))
        # workers have the rights of the daemon's owner: files of its cache are no business of others
        cache = request.cache if self._state.user.may_command else None
        job = job_of(
            CompileJob,
            request,
            platform=self._platform(context),
            cache=cache,
            strict=self._strict,
            kernels=self._kernels,
        )
        self._compile(call, context, job, fds)

    def import_blob(self, call: Call, request: msg.GraphImport) -> None:
        context = self._check_compile(call.number, request.context)
        check_sources(request.weights, "blob")
        if request.placement_length < 0:
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "placement",
                found=f"{request.placement_length} bytes",
                expected="0 or more",
            )
        fds = call.packet.check_fds(1 + (request.placement_length > 0) + len(request.weights))
        job = job_of(
            ImportJob,
            request,
            platform=self._platform(context),
            strict=self._strict,
            remembered=self._state.user.may_command,
        )
        self._compile(call, context, job, fds)

    def answer_blob(self, call: Call, request: msg.GraphBlob) -> None:
        image = self._state.graphs.get(request.graph).image
        answer = msg.GraphBlobAnswer(
            blob_length=image.answer.blob_length, placement_length=image.answer.placement_length
        )
        self._state.post(call.number, answer, image.blob_fds)

    def export(self, call: Call, request: msg.GraphExport) -> None:
        graph = self._state.graphs.get(request.graph)
        self._check_job(call.number)
        answer = graph.image.answer
        if request.offset is not None and len(graph.image.fds) >= frames.MAX_FDS:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_SIZE,
                "graph",
                found=f"weights in {len(graph.image.weights)} sources, and a file to write to",
                expected=f"at most {frames.MAX_FDS} descriptors in one job",
                hint="export it into memory",
            )
        job = ExportJob(
            blob_length=answer.blob_length,
            placement_length=answer.placement_length,
            weights=graph.image.weights,
            offset=request.offset,
        )
        fds = call.packet.check_fds(int(request.offset is not None))
        fds[:0] = duplicates(graph.image.fds)
        self._run_job(call, job, fds, graph.context.device)

    def query(self, call: Call, request: msg.GraphQuery) -> None:
        context = self._state.contexts.get(request.context)
        self._check_job(call.number)
        check_sources(request.weights, f"model '{request.name}'")
        platform = self._platform(context)
        job = job_of(QueryJob, request, platform=platform, strict=self._strict, kernels=self._kernels)
        self._run_job(call, job, call.packet.check_fds(1 + len(request.weights)), context.device)

    def answer_options(self, call: Call, request: msg.CompilerOptions) -> None:
        self._check_job(call.number)
        device = self._state.device(request.device, "compiler options")
        job = job_of(OptionsJob, request, platform=device.info.platform)
        self._run_job(call, job, [], device.info.index)

    def _platform(self, context: Context) -> str:
        return self._state.device_of(context).info.platform

    def _check_compile(self, number: int, handle: int) -> Context:
        context = self._state.contexts.get(handle)
        self._state.graphs.check_room()
        self._check_job(number)
        return context

    def _check_job(self, number: int) -> None:
        """Refuse one more job for the compiler than a session may have under way."""
        limit = self._state.services.limits.compiles
        if len(self._compilations) >= limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "graph",
                found=f"{limit} compilations of this session are under way",
                expected=f"at most {limit}",
                hint="wait for one to end, or start the daemon with a larger --limit session-compiles",
            )
        self._state.user.compiles.check()
        if number in self._compilations:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "graph",
                found=f"request id {number} is in use",
                expected="a fresh request id",
            )

    def _compile(self, call: Call, context: Context, job: CompileJob | ImportJob, fds: list[int]) -> None:
        device = self._state.device_of(context)
        function = self._state.function_of(context)
        number, images = call.number, function.images
        started = time.monotonic()

        def on_done(answer: Result, made: list[int]) -> None:
            assert isinstance(answer, Compiled)
            self._state.contexts.get(context.handle)
            self._state.graphs.check_room()
            function.states.check_image()
            with undoing() as undo:
                undo.callback(images.drop_unused)
                compilation.give_fds(len(job.weights), made)
                deferred = isinstance(job, ImportJob) and job.deferred
                image = images.acquire(
                    answer, job.weights, made, self._owner[0], deferred, self._state.segments
                )
                graph = Graph(context, image)
                undo.callback(self._drop, graph)
                graph.counts = True
                graph.image.users += 1
                graph.handle = self._state.graphs.add(graph)
                context.graphs[graph.handle] = graph
                taken_s = time.monotonic() - started
                device.count_time(_LATENCIES.get(answer.origin, Latency.COMPILED), taken_s)
                created = msg.GraphCreated(
                    graph=graph.handle,
                    blob_length=answer.blob_length,
                    compile_ms=taken_s * 1e3,
                    log=answer.log,
                    origin=answer.origin,
                )
                if trace.active is not None and answer.origin == msg.GraphOrigin.CACHE.value:
                    trace.active.event("compiled model from the cache", self._owner[1])
                self._state.post(number, created, graph.image.fds[:1])

        compilation = self._start_job(call, job, fds, on_done, context.device)

    def _run_job(self, call: Call, job: Job, fds: list[int], device: int) -> None:
        """Run a job whose answer is the answer to the request."""
        self._start_job(call, job, fds, partial(self._state.post, call.number), device)

    def _start_job(
        self,
        call: Call,
        job: Job,
        fds: list[int],
        on_done: Callable[[Result, list[int]], None],
        device: int,
    ) -> Compilation:
        """Start a job; takes ownership of the descriptors."""
        job = msgspec.structs.replace(job, shared=self._state.services.shared)
        _check_size(job)
        park(fds, self._owner[0])
        number = call.number

        def done(answer: Result, made: list[int]) -> None:
            if self._compilations.get(number) is not compilation:
                return
            self._pop(number)
            try:
                self._state.answering(number, on_done, answer, made)
            finally:
                close_untrusted(made, self._owner[0])  # those not taken
                made.clear()

        def failed(info: ErrorInfo) -> None:
            if self._compilations.get(number) is not compilation:
                return
            self._pop(number)
            # a model refused in its format alone is asked for again, as an IR
            if isinstance(job, CompileJob | ImportJob) and info.property != msg.FORMAT:
                self._state.services.devices[device].count(StatusWord.BUILD_FAILURES)
            self._state.post(number, msg.Failed(info=info), ())

        guarded = self._state.reactor.guarded
        compilation = Compilation(
            job,
            [],
            on_progress=guarded(lambda progress: self._state.post(number, progress, ())),
            on_done=guarded(done),
            on_failed=guarded(failed),
            owner=self._owner,
            function=self._state.function_key,
            worker_signal=call.worker_signal,
            device=device,
        )
        with undoing() as undo:
            undo.callback(self._state.services.compilers.abandon, compilation)
            undo.callback(self._pop, number)
            move(fds, compilation.fds)
            self._compilations[number] = compilation
            self._account.set(len(self._compilations))
            self._state.services.compilers.submit(compilation)
        return compilation

    def _pop(self, number: int) -> Compilation | None:
        compilation = self._compilations.pop(number, None)
        self._account.set(len(self._compilations))
        return compilation

    def cancel(self, call: Call, request: msg.Cancel) -> None:
        compilation = self._pop(request.request)
        if compilation is not None:
            self._state.services.compilers.abandon(compilation)
            self._state.post(request.request, msg.Failed(info=cancelled_info()), ())
        self._state.answer_ok(call)

    def expect(self, call: Call, request: msg.GraphExpected) -> None:
        context = self._state.contexts.get(request.context)
        _check_hint(request.hint)
        if self._state.user.may_command:  # it has the device read the cache of the daemon's user
            self._state.function_of(context).expect(request.hint)
        self._state.answer_ok(call)

    def initialize(self, call: Call, request: msg.GraphInitialize) -> None:
        graph, number = self._state.graphs.get(request.graph), call.number
        if request.hint:
            _check_hint(request.hint)
        device = self._state.device_of(graph.context)
        function = self._state.function_of(graph.context)
        platform, compiled_for = device.info.platform, graph.image.answer.platform
        if compiled_for not in ("", platform):
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                "graph, platform",
                found=f"compiled for {compiled_for}",
                expected=f"{platform}, the platform of this device",
                hint="export it, and import it on a device of its platform",
            )

        def on_loaded(info: ErrorInfo | None, load_ms: float) -> None:
            if info is not None:
                raise Refused(info)
            if graph.handle in graph.context.graphs and not graph.initialized:
                function.announce.graph(graph)
                graph.initialized = True
                graph.context.idle.released = None  # there is more to give back now
                function.idle.watch()
            self._state.post(number, msg.GraphInitialized(load_ms=load_ms, shared=load_ms == 0.0), ())

        def ended(info: ErrorInfo | None, load_ms: float) -> None:
            waits.close()
            self._state.answering(number, on_loaded, info, load_ms)

        hint = request.hint if self._state.user.may_command else b""
        self._loads.check()
        with undoing() as undo:
            waits = self._loads.hold()
            undo.callback(waits.close)
            # whatever it raises, others wait for the same image
            function.load(graph, hint, self._state.reactor.guarded(ended))

    def destroy(self, call: Call, request: msg.GraphDestroy) -> None:
        self._drop(self._state.graphs.get(request.graph))
        self._state.answer_ok(call)

    def _drop(self, graph: Graph) -> None:
        self._state.function_of(graph.context).drop_graph(graph)
        graph.context.graphs.pop(graph.handle, None)
        self._state.graphs.discard(graph.handle)


def cancelled_info() -> ErrorInfo:
    """Return the answer to a compilation that was cancelled."""
    return ErrorInfo(
        result=ZeResult.ERROR_NOT_AVAILABLE,
        object="compilation",
        found="cancelled by the client",
        hint="compile again",
    )


def _check_hint(hint: bytes) -> None:
    if len(hint) != _HINT_BYTES:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "graph, hint",
            found=f"{len(hint)} bytes",
            expected=f"a digest of {_HINT_BYTES} bytes",
        )


def _check_size(job: Job) -> None:
    """Refuse a job that is longer than a frame: a job is a little longer than its request."""
    size = len(msg.encode(job))
    if size <= frames.MAX_BODY:
        return
    raise refuse(
        ZeResult.ERROR_INVALID_SIZE,
        "graph",
        found=f"a job of {size} bytes",
        expected=f"at most {frames.MAX_BODY} bytes",
    )
