"""A virtual function of a device: an engine process, its state, and recovery from its death.

When an engine ends unexpectedly its function is reset: every object is announced to a new engine, images are
loaded again, and queues continue after their last finished submission. The submission that was running
continues with the interrupted command; the offender (`reset_blame`) fails with `ERROR_DEVICE_LOST` and its
queue is lost. All other commands complete.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from softnpu.emulator.interface import trace
from softnpu.emulator.interface.messages import DeviceInfo, FunctionStatus
from softnpu.emulator.interface.records import STATE_NAMES, DeviceState, Latency, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import bounds
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.children.child import Child
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.engines.announcements import Announcements, image_load
from softnpu.emulator.supervisor.engines.ban_policy import BanPolicy, DeviceBans
from softnpu.emulator.supervisor.engines.cache_fills import CacheFills
from softnpu.emulator.supervisor.engines.draining import Draining
from softnpu.emulator.supervisor.engines.idle_memory import IdleMemory
from softnpu.emulator.supervisor.engines.image_loads import ImageLoads
from softnpu.emulator.supervisor.engines.kernels_process import KernelsProcess
from softnpu.emulator.supervisor.engines.queue_states import QueueStates
from softnpu.emulator.supervisor.engines.reset_blame import (
    KillReason,
    Suspicion,
    fail_image,
    failed_info,
    poison_submissions,
)
from softnpu.emulator.supervisor.engines.running_submissions import RunningSubmission, RunningSubmissions
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from softnpu.emulator.supervisor.engines.watchdog import Watchdog
from softnpu.emulator.supervisor.limits import FUNCTION_ADDRESS_SPACE, Account, address_space
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.state.images import Image, ImageState, ImageStore, LoadCallback
from softnpu.emulator.supervisor.state.objects import Context, Graph, Queue
from softnpu.emulator.supervisor.users import FunctionKey

log = logging.getLogger(__name__)

_FAILED_STARTS = 5
_SETTLED_S = 1.0
_LONGEST_PAUSE_S = 1.0
_LONGEST_REFUSED_S = 2.0
_LONGEST_KILLED_S = 5.0
_NEVER_PRUNED = ("3720",)  # as by the real driver


class Host(Protocol):
    """The device that a function is a part of: accounts and the status page."""

    info: DeviceInfo
    memory: Account
    on_start: Callable[[VirtualFunction], None]
    on_end: Callable[[VirtualFunction], None]
    on_failed: Callable[[VirtualFunction, ErrorInfo], None]

    def count(self, word: StatusWord) -> None: ...
    def count_time(self, latency: Latency, seconds: float) -> None: ...
    def function_changed(self) -> None: ...


class VirtualFunction:
    """The supervisor's side of one engine. `page`: where it counts, in the part of device `setup.device`.

    `primary`: of the daemon's owner.
    """

    def __init__(
        self,
        key: FunctionKey,
        primary: bool,
        host: Host,
        reactor: Reactor,
        page: StatusPage,
        setup: link.Setup,
        settings: DaemonSettings,
        ban_policy: BanPolicy,
        image_numbers: Iterator[int],
    ) -> None:
        self.key = key
        self.primary = primary
        self.page = page
        self._name = f"device {host.info.index}" if primary else f"device {host.info.index}, {key}"
        self._host = host
        self._device = host.info.index
        self.states = QueueStates()
        self.images = ImageStore(self.states, image_numbers)
        self.contexts: dict[int, Context] = {}
        self.memory = Account(host.memory)
        self.address_space = address_space(f"device {self._device}", FUNCTION_ADDRESS_SPACE)
        self.state = DeviceState.STARTING
        self.restarts = 0
        self.internal_errors = 0  # that its engines have reported
        self._draining = Draining(self.states)
        self._running = RunningSubmissions(self.contexts, self._draining, self.states)
        self._reactor = reactor.owned(f"which ends an engine of {self._name}", self._broken, key.share)
        self._setup = setup
        self.bans = DeviceBans(self.contexts, ban_policy, reactor, self._post, host.count, key.uid)
        self.announce = Announcements(self._tell, self._post, self.bans)
        self._loads = ImageLoads(self.images, self.announce, self._post)
        self._cache_fills = CacheFills(reactor, key.share)
        self._kernels = KernelsProcess(self._reactor, self._name, self._post)
        prunes = host.info.platform not in _NEVER_PRUNED
        self.idle = IdleMemory(self.contexts, self.states, self._loads, self._post, reactor, prunes)
        self._watchdog = Watchdog(self, reactor, settings.tuning, settings.tdr_ms, settings.command_limit_s)
        self._backlog = settings.tuning.engine_backlog
        self._kill_reason: KillReason | None = None
        self._failed_starts = 0  # consecutive engines that never became ready
        self._early_deaths = 0  # and that were ready only briefly: the next one starts later
        self._refused_starts = 0  # in a row: no process could be made
        self._starting: Timer | None = None
        self._ready_at = 0.0
        self._engine: Child | None = None
        self._on_end: Callable[[], None] | None = None

    # ------------------------------------------------------------ engine process

    def start(self) -> None:
        """Start the engine and announce all objects, now or as soon as possible."""
        self._reactor.guarded(self._start)()

    def _start(self) -> None:
        self._set_state(DeviceState.STARTING if self.restarts == 0 else DeviceState.RESETTING)
        try:
            engine = self._engine = Child(
                ChildProgram.ENGINE,
                self._reactor,
                self._on_frame,
                self._on_engine_end,
                self.states.set_commands_pending,
                self._backlog,
            )
        except (OSError, MemoryError) as error:
            self._start_later(error)
            return
        if self._refused_starts:
            log.warning("%s: engine %d was started", self._name, engine.pid)
        self._refused_starts = 0
        self._reactor.guarded(self._tell_all)(engine)

    def _tell_all(self, engine: Child) -> None:
        """Send a new engine its complete state."""
        engine.expect_burst()
        self._host.function_changed()
        self.states.clear_liveness()
        # clients' objects take many commands: until all are sent, one may name a handle announced later
        self.states.set_commands_pending(True)
        self._watchdog.begin(engine.pid)
        self._post(
            msgspec.structs.replace(self._setup, after_reset=self.restarts > 0),
            [self.states.fd, self.page.fd, self.states.staging],
        )
        self._host.on_start(self)
        # also what failed to load last time: the engine has to know every image that a graph names
        named = {graph.image.number for graph in self._initialized_graphs()}
        for image in self.images.all():
            if image.state is not ImageState.COMPILED or image.waiting or image.number in named:
                self._loads.begin(image)
        for context in self.contexts.values():
            self.announce.context(context)
        self._post(link.Resume())
        engine.end_burst()
        self.states.set_commands_pending(engine.full)

    def _start_later(self, error: OSError | MemoryError) -> None:
        """Try again: the machine, or this process, has no room for one more process at the moment."""
        pause_s = min(_LONGEST_REFUSED_S, 0.1 * 2.0 ** min(self._refused_starts, 10))
        if not self._refused_starts:
            log.error(
                "%s: no engine can be started (%s: %s); tried again until it can, at most %g s apart",
                self._name,
                type(error).__name__,
                error,
                _LONGEST_REFUSED_S,
            )
        self._refused_starts += 1
        self._starting = self._reactor.after(pause_s, self.start)

    def close(self, timeout_s: float) -> None:
        """End the engine and close all descriptors of the function."""
        self._watchdog.end()
        if self._starting is not None:
            self._starting.cancel()
        if self._engine is not None:
            self._engine.close(timeout_s)
            self._engine = None
        self._cache_fills.close(timeout_s)
        self._kernels.close()
        self.images.close()
        self.states.close()

    def end(self, on_end: Callable[[], None]) -> None:
        """End an unused function for good; `on_end` is called once there is no engine. Then `close` it."""
        self._on_end = on_end
        self._watchdog.end()
        if self._engine is None:
            on_end()
        else:
            self._engine.kill()

    def _set_state(self, state: DeviceState) -> None:
        self.state = state
        self._host.function_changed()

    def _tell(self, command: link.EngineCommand, fds: list[int]) -> None:
        """Send a command before its effect; raises, without any effect, on failure."""
        if self._engine is not None:
            self._engine.send(0, command, fds)

    def _post(self, command: link.EngineCommand, fds: list[int] | None = None) -> None:
        """Send a change that has happened; an engine that cannot be told is replaced."""
        if self._engine is not None:
            self._engine.post(0, command, fds or [])

    def post_injection(
        self, command: link.InjectionAdd | link.InjectionDrop, fds: list[int] | None = None
    ) -> None:
        """Send an injection to the engine, if there is one; it takes effect before the next submission."""
        if self._engine is not None:
            self._post(command, fds)
            self.states.count_injection()

    def post_trace(self, command: link.TraceBegin | link.TraceEnd, fds: list[int]) -> None:
        """Make the engine begin or end tracing; take the descriptors."""
        try:
            self._post(command, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _on_frame(self, _request: int, body: memoryview, _fds: list[int]) -> None:
        report = bounds.decode(link.report_decoder, body)
        match report:
            case link.Ready():
                self._ready_at = time.monotonic()
                self._watchdog.loader = report.loader
                self._set_state(DeviceState.READY)
                log.info("%s: engine %d is ready", self._name, self.engine_pid)
                if report.missing_protections and not self.restarts:
                    missing = ", ".join(report.missing_protections)
                    log.warning("%s: its engine is not sandboxed by %s", self._name, missing)
                if trace.active is not None:
                    trace.active.event("engine ready", device=self._device, number=self.engine_pid)
            case link.ContextDropped(context=number):
                self._draining.finish_context(number)
            case link.SegmentUnmapped(context=number, segment=segment):
                self._draining.finish_segment(number, segment)
            case link.QueueDropped(context=number, queue=queue):
                self._draining.finish_queue(number, queue)
            case link.ImageBegun(image=number):
                self._loads.begun(number)
            case link.ImageLoaded():
                if report.info is None:
                    self._host.count_time(Latency.LOAD, report.load_ms / 1e3)
                self._loads.finish(report)
            case link.CacheLacks():
                image = self.images.find(report.image)
                if image is not None and self._setup.cpu_cache:
                    self._cache_fills.add(image_load(image), image.fds, image.owner)
            case link.ImageNeeded():
                self.idle.restore(report)
            case link.KernelsNeeded():
                self._kernels.start(report.helper, self.contexts.values())
            case link.QueueRefused():
                self.bans.on_refused(report)
            case link.InternalError():
                self.internal_errors += 1
            case link.SubmissionFailed():
                where = self._name, report.context, report.sequence
                log.warning("%s: context %d, submission %d: %s", *where, report.info)
                self.bans.on_failure(report)

    def _on_engine_end(self, reason: str) -> None:
        if self._on_end is not None:
            log.info("%s: engine %d has ended, nobody uses it", self._name, self.engine_pid)
            self._host.on_end(self)
            self._engine = None
            self._on_end()
            return
        log.error("%s: engine %d %s", self._name, self.engine_pid, reason)
        if trace.active is not None:
            trace.active.event(f"engine {reason}", device=self._device, number=self.engine_pid)
        self._host.on_end(self)
        engine, self._engine = self._engine, None
        short = engine is not None and engine.short
        held = engine is not None and engine.process.returncode == link.EXIT_HELD
        self.page.set(self._setup.device, StatusWord.QUEUED, 0)
        self._watchdog.end()
        alone = self.state is DeviceState.READY and self.running_submission() is None
        loading = self._loads.interrupt()
        kill, self._kill_reason = self._kill_reason, None
        for queue in poison_submissions(self._running.queues(), self.states, kill, reason):
            self._blame(queue, reason if kill is None else kill.info.found)
        self._draining.finish_all()
        if loading is not None and kill is not None and kill.blames_image:
            self._blame_image(loading, kill.info.found, Suspicion.CERTAIN)
        elif loading is not None and alone:
            self._blame_image(loading, reason, Suspicion.NONE if held else Suspicion.SOME)
        ready = self.state is DeviceState.READY
        settled = ready and time.monotonic() - self._ready_at > _SETTLED_S
        # one that others killed, or that was not told all for a lack of something, had no chance to be ready
        killed = engine is not None and engine.killed_by_others
        self._failed_starts = 0 if ready else self._failed_starts + (not short and not killed)
        self._early_deaths = 0 if settled else self._early_deaths + 1
        if self._failed_starts > _FAILED_STARTS:
            self._fail(reason)
            return
        self.restarts += 1
        self._set_state(DeviceState.RESETTING)
        longest_s = _LONGEST_KILLED_S if killed and not ready else _LONGEST_PAUSE_S
        pause = min(longest_s, 0.2 * max(0, self._early_deaths - 1))
        self._starting = self._reactor.after(pause, self.start)

    def _broken(self, info: ErrorInfo) -> None:
        """End the engine after an internal error; a new one is told everything again."""
        if self._engine is not None and self._engine.alive:
            self._engine.give_up(info.found, info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY)
            return
        self._engine = None  # in its end, or before it began
        if self.state is not DeviceState.FAILED and self._on_end is None:
            self._watchdog.end()
            if self._starting is not None:
                self._starting.cancel()
            self._starting = self._reactor.after(_LONGEST_PAUSE_S, self.start)
            self._loads.interrupt()
            self._draining.finish_all()

    def _blame_image(self, image: Image, reason: str, suspicion: Suspicion) -> None:
        first_time = image.state is ImageState.LOADING
        if not fail_image(image, reason, suspicion):
            return
        # it is not announced to the next engine: its graphs have to be initialised again
        for graph in self._initialized_graphs():
            if graph.image is image:
                graph.initialized = False
        if first_time and image.loader:
            self.bans.blame(image.loader, "graph", f"{reason} while it loaded a graph")

    def _blame(self, queue: Queue, reason: str) -> None:
        self.bans.blame(queue.context.ban_key, f"queue {queue.handle:#x}", reason)

    def _fail(self, reason: str) -> None:
        log.error(
            "%s is given up: %d engines in a row ended before they were ready, the last one %s",
            self._name,
            self._failed_starts,
            reason,
        )
        self._set_state(DeviceState.FAILED)
        os.ftruncate(self.states.staging, 0)
        self._host.on_failed(self, failed_info(self._device))

    @property
    def engine_pid(self) -> int:
        """Its engine; 0 while none runs."""
        return 0 if self._engine is None else self._engine.pid

    # ------------------------------------------------------------ hangs, as the watchdog sees them

    @property
    def is_ready(self) -> bool:
        return self.state is DeviceState.READY

    @property
    def needed(self) -> bool:
        """Whether the engine is needed, by clients or to free the memory of former ones."""
        return bool(self.contexts or self._draining)

    @property
    def is_unmapping(self) -> bool:
        """Whether the engine may still map memory that was freed."""
        return self._draining.is_unmapping

    @property
    def loading(self) -> bool:
        """Whether the engine has a graph to load and has not answered."""
        return bool(self._loads)

    def status(self, counted: Callable[[StatusWord], int]) -> FunctionStatus:
        """Return its status; `counted` reads its engines' counters."""
        return FunctionStatus(
            uid=self.key.uid,
            session=self.key.session,
            engine_pid=self.engine_pid,
            state=STATE_NAMES[self.state],
            restarts=self.restarts,
            memory_used=self.memory.used,
            contexts=len(self.contexts),
            images=len(self.images),
            submissions=counted(StatusWord.SUBMISSIONS),
            inferences=counted(StatusWord.INFERENCES),
            busy_ns=counted(StatusWord.BUSY),
        )

    def running_submission(self) -> RunningSubmission | None:
        """Return the running submission."""
        return self._running.first()

    def ping(self, number: int) -> None:
        self._post(link.Ping(number=number))

    def abort(self, submission: RunningSubmission, info: ErrorInfo) -> None:
        """Ask the engine to abort an overdue submission."""
        queue, sequence = submission.queue, submission.running.sequence
        if trace.active is not None:
            trace.active.event("submission aborted", queue.context.session, self._device, sequence)
        self._blame(queue, info.found)
        self._post(link.Abort(context=queue.context.number, queue=queue.handle, sequence=sequence, info=info))

    def kill_engine(self, reason: KillReason) -> None:
        """Kill an engine that makes no progress."""
        log.error("%s: engine %d: %s", self._name, self.engine_pid, reason.info.found)
        if trace.active is not None:
            trace.active.event("engine hangs, killed", device=self._device, number=self.engine_pid)
        if self._engine is not None:
            self._kill_reason = reason
            self._engine.kill()

    def count(self, word: StatusWord) -> None:
        """Increment a word of the device."""
        self._host.count(word)

    # ------------------------------------------------------------ contexts, memory, queues

    def add_context(self, context: Context) -> None:
        self._check_usable()
        self.announce.context(context)
        self.contexts[context.number] = context

    def drop_context(self, context: Context, on_dropped: Callable[[], None]) -> None:
        """Remove a context; its memory counts until the engine has dropped it too, then call `on_dropped`."""
        self.contexts.pop(context.number, None)
        self._host.function_changed()
        self._draining.add_context(context, on_dropped)
        for graph in context.graphs.values():
            self._loads.release(graph)
        context.close()
        if self._engine is None or not context.told:
            self._draining.finish_context(context.number)
        else:
            self._post(link.ContextDrop(context=context.number))

    def drop_segment(self, context: Context, segment: int, on_unmapped: Callable[[], None]) -> None:
        """Remove a segment; call `on_unmapped` once the engine no longer maps it."""
        self._draining.add_segment(context, segment, on_unmapped)
        if self._engine is None:
            self._draining.finish_segment(context.number, segment)
        else:
            self._post(link.SegmentDrop(context=context.number, segment=segment, reported=True))

    def _check_usable(self) -> None:
        if self.state is DeviceState.FAILED:
            raise Refused(failed_info(self._device))

    def drop_queue(self, queue: Queue, on_dropped: Callable[[], None]) -> None:
        """Remove a queue; call `on_dropped` once the engine no longer runs its submissions."""
        self._draining.add_queue(queue, on_dropped)
        if self._engine is None or not queue.told:
            self._draining.finish_queue(queue.context.number, queue.handle)
        else:
            self._post(link.QueueDrop(context=queue.context.number, queue=queue.handle))

    # ------------------------------------------------------------ graphs

    def expect(self, hint: bytes) -> None:
        """Tell the engine that an image with this hint will probably be loaded."""
        self._post(link.ImageExpected(hint=hint))

    def load(self, graph: Graph, hint: bytes, on_loaded: LoadCallback) -> None:
        """Bring the graph's image onto the device if it is not there, then call `on_loaded(error, ms)`."""
        self._check_usable()
        image = graph.image
        if image.state is ImageState.LOADED:
            on_loaded(None, 0.0)
            return
        self.bans.check(graph.context.ban_key, "graph")
        self._loads.wait(image, graph.context, hint, on_loaded)

    def drop_graph(self, graph: Graph) -> None:
        """Remove a graph; harmless when repeated."""
        self._post(link.GraphDrop(context=graph.context.number, graph=graph.handle))
        self._loads.release(graph)

    def _initialized_graphs(self) -> list[Graph]:
        graphs = [graph for context in self.contexts.values() for graph in context.graphs.values()]
        return [graph for graph in graphs if graph.initialized]
