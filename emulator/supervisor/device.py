"""One emulated device: its engine process, what the engine must know, and what happens when it dies.

When an engine ends unexpectedly the device is reset: every object is announced to a new engine, images
are loaded again, and queues go on behind their last finished submission. The submission that was running
goes on with the command that was interrupted; what is to blame (`reset_blame`) fails with `ERROR_DEVICE_LOST`
and its queue is lost. Everybody else's commands complete.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.messages import DeviceInfo, EngineStatus, Histogram
from softnpu.emulator.interface.records import STATE_NAMES, DeviceState, Latency, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.announcements import Announcements
from softnpu.emulator.supervisor.ban_policy import BanPolicy, DeviceBans
from softnpu.emulator.supervisor.child import Child
from softnpu.emulator.supervisor.child_process import ChildProgram
from softnpu.emulator.supervisor.idle_memory import IdleMemory
from softnpu.emulator.supervisor.image_loads import ImageLoads
from softnpu.emulator.supervisor.images import Image, ImageState, ImageStore, LoadCallback
from softnpu.emulator.supervisor.limits import DEVICE_ADDRESS_SPACE, address_space
from softnpu.emulator.supervisor.objects import Context, Graph, Queue
from softnpu.emulator.supervisor.queue_states import QueueStates
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.reset_blame import KillReason, condemn_submissions, fail_image
from softnpu.emulator.supervisor.settings import DaemonSettings, limits_for
from softnpu.emulator.supervisor.status_page import StatusPage
from softnpu.emulator.supervisor.watchdog import RunningSubmission, Watchdog

log = logging.getLogger(__name__)

_FAILED_STARTS = 5
_SETTLED_S = 1.0
_LONGEST_PAUSE_S = 1.0
_NEVER_PRUNED = ("3720",)  # as by the real driver


class Device:
    """The supervisor's side of one device."""

    def __init__(
        self,
        info: DeviceInfo,
        reactor: Reactor,
        page: StatusPage,
        settings: DaemonSettings,
        ban_policy: BanPolicy,
        image_numbers: Iterator[int],
    ) -> None:
        self.info = info
        self.states = QueueStates()
        self.images = ImageStore(self.states, image_numbers)
        self.contexts: dict[int, Context] = {}
        self.memory_used = 0
        self.address_space = address_space(f"device {info.index}", DEVICE_ADDRESS_SPACE)
        self.state = DeviceState.STARTING
        self.restarts = 0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        # what the engine may still use: memory and queue records of a context, the record of a queue
        self._draining: dict[int, tuple[Context, int, list[int], Callable[[], None]]] = {}
        self._draining_queues: dict[tuple[int, int], tuple[Queue, Callable[[], None]]] = {}
        self._draining_segments: dict[tuple[int, int], Callable[[], None]] = {}
        self._reactor = reactor
        self._page = page
        self._setup = link.Setup(
            device=info.index,
            platform=info.platform,
            devices=len(settings.devices),
            tdr_ms=settings.tdr_ms,
            spin_us=settings.spin_us,
            session_memory=limits_for(settings).session_memory,
            self_check=settings.checks_itself,
            clock=settings.clock,
            inference_us=settings.inference_us,
        )
        # what an engine has computed and not copied to its target when it dies: the supervisor never maps it
        self._staging = linux.memfd("staging")
        self.bans = DeviceBans(self.contexts, ban_policy, reactor, self._post, self.count)
        self.announce = Announcements(self._post, self.bans)
        self._loads = ImageLoads(self.images, self.announce, self._post)
        prunes = info.platform not in _NEVER_PRUNED
        self.idle = IdleMemory(self.contexts, self.states, self._loads, self._post, reactor, prunes)
        self._watchdog = Watchdog(self, reactor, settings.tuning, settings.tdr_ms, settings.command_limit_s)
        self._kill_reason: KillReason | None = None
        self._failed_starts = 0  # engines in a row that were never ready
        self._early_deaths = 0  # and those that were not for long: the next one starts a little later
        self._ready_at = 0.0
        self._engine: Child | None = None
        self._set_word(StatusWord.PLATFORM, int(info.platform))
        self._set_word(StatusWord.MEMORY_TOTAL, info.memory_total)

    def counter(self, word: StatusWord) -> int:
        """What the engine has counted; for readers only."""
        return self._page.get(self.info.index, word)

    # ------------------------------------------------------------ engine process

    def start(self) -> None:
        """Start the engine and announce everything that exists."""
        self._set_state(DeviceState.STARTING if self.restarts == 0 else DeviceState.RESETTING)
        engine = Child(
            ChildProgram.ENGINE,
            self._reactor,
            self._on_frame,
            self._on_engine_end,
            self.states.set_commands_pending,
        )
        self._engine = engine
        self._set_word(StatusWord.ENGINE_PID, engine.pid)
        self.states.clear_liveness()
        # what clients have takes many commands: until all are sent, one may name a handle that comes later
        self.states.set_commands_pending(True)
        self._watchdog.begin(engine.pid)
        self._post(
            msgspec.structs.replace(self._setup, after_reset=self.restarts > 0),
            [self.states.fd, self._page.fd, self._staging],
        )
        self.on_start()
        # also what failed to load last time: the engine has to know every image that a graph names
        named = {graph.image.number for graph in self._initialized_graphs()}
        for image in self.images.all():
            if image.state is not ImageState.COMPILED or image.number in named:
                self._loads.begin(image)
        for context in self.contexts.values():
            self.announce.context(context)
        self._post(link.Resume())
        self.states.set_commands_pending(engine.full)

    def close(self, timeout_s: float) -> None:
        """End the engine and close all descriptors of the device."""
        self._watchdog.end()
        if self._engine is not None:
            self._engine.close(timeout_s)
            self._engine = None
        self.images.close()
        self.states.close()
        os.close(self._staging)

    def _set_word(self, word: StatusWord, value: int) -> None:
        self._page.set(self.info.index, word, value)

    def _set_state(self, state: DeviceState) -> None:
        self.state = state
        self._set_word(StatusWord.STATE, state)

    def _post(self, command: link.EngineCommand, fds: list[int] | None = None) -> None:
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
        """Have the engine begin or end tracing; takes the descriptors."""
        try:
            self._post(command, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _on_frame(self, _request: int, body: memoryview, _fds: list[int]) -> None:
        report = link.report_decoder.decode(body)
        match report:
            case link.Ready():
                self._ready_at = time.monotonic()
                self._set_state(DeviceState.READY)
                log.info("device %d: engine %d is ready", self.info.index, self.engine_pid)
                if trace.active is not None:
                    trace.active.event("engine ready", device=self.info.index, number=self.engine_pid)
                self.on_ready()
            case link.ContextDropped(context=number):
                self._finish_context_drop(number)
            case link.SegmentUnmapped(context=number, segment=segment):
                self._finish_segment_drop((number, segment))
            case link.QueueDropped(context=number, queue=queue):
                self._finish_queue_drop((number, queue))
            case link.ImageLoaded():
                if report.info is None:
                    self.count_time(Latency.LOAD, report.load_ms / 1e3)
                self._loads.finish(report)
            case link.ImageNeeded():
                self.idle.restore(report)
            case link.SubmissionFailed():
                log.warning(
                    "device %d: context %d, submission %d: %s",
                    self.info.index,
                    report.context,
                    report.sequence,
                    report.info,
                )
                self.bans.on_failure(report)

    def _on_engine_end(self, reason: str) -> None:
        log.error("device %d: engine %d %s", self.info.index, self.engine_pid, reason)
        if trace.active is not None:
            trace.active.event(f"engine {reason}", device=self.info.index, number=self.engine_pid)
        self.on_end()
        self._engine = None
        self._set_word(StatusWord.ENGINE_PID, 0)
        self._set_word(StatusWord.QUEUED, 0)
        # with no engine nothing of a departing context can be in use any more
        for key in list(self._draining_queues):
            self._finish_queue_drop(key)
        for number in list(self._draining):
            self._finish_context_drop(number)
        for key in list(self._draining_segments):
            self._finish_segment_drop(key)
        self._watchdog.end()
        alone = self.state is DeviceState.READY and self.running_submission() is None
        loading = self._loads.interrupt()
        kill, self._kill_reason = self._kill_reason, None
        for queue in condemn_submissions(self.contexts.values(), self.states, kill, reason):
            self._blame(queue, reason if kill is None else kill.info.found)
        if loading is not None and alone:
            self._blame_image(loading, reason)
        ready = self.state is DeviceState.READY
        settled = ready and time.monotonic() - self._ready_at > _SETTLED_S
        self._failed_starts = 0 if ready else self._failed_starts + 1
        self._early_deaths = 0 if settled else self._early_deaths + 1
        if self._failed_starts > _FAILED_STARTS and not self.contexts:
            self._fail()
            return
        self.restarts += 1
        self._set_state(DeviceState.RESETTING)
        self._set_word(StatusWord.RESTARTS, self.restarts)
        pause = min(_LONGEST_PAUSE_S, 0.2 * max(0, self._early_deaths - 1))
        self._reactor.after(pause, self.start)

    def _blame_image(self, image: Image, reason: str) -> None:
        first_time = image.state is ImageState.LOADING
        if not fail_image(image, reason):
            return
        # it is not announced to the next engine: its graphs have to be initialised again
        for graph in self._initialized_graphs():
            if graph.image is image:
                graph.initialized = False
        if first_time and image.loader:
            self.bans.blame(image.loader, "graph", f"{reason} while it loaded a graph")

    def _blame(self, queue: Queue, reason: str) -> None:
        self.bans.blame(queue.context.ban_key, f"queue {queue.handle:#x}", reason)

    def _fail(self) -> None:
        self._set_state(DeviceState.FAILED)
        os.ftruncate(self._staging, 0)
        log.error("device %d: its engines end before they are ready, the device is given up", self.info.index)
        self.on_ready()

    @property
    def engine_pid(self) -> int:
        """Its engine; 0 while none runs."""
        return self._page.get(self.info.index, StatusWord.ENGINE_PID)

    # ------------------------------------------------------------ hangs, as the watchdog sees them

    @property
    def is_ready(self) -> bool:
        return self.state is DeviceState.READY

    @property
    def needed(self) -> bool:
        """Whether anybody waits for the engine: clients, or the memory of those that have left."""
        return bool(self.contexts or self._draining or self._draining_queues)

    @property
    def is_unmapping(self) -> bool:
        """Whether the engine may still map sparse memory that was freed."""
        return bool(self._draining_segments or self._draining)

    @property
    def loading(self) -> bool:
        """Whether the engine has a graph to load and has not answered."""
        return bool(self._loads)

    def running_submission(self) -> RunningSubmission | None:
        """The submission that runs."""
        for context in self.contexts.values():
            for queue in context.queues.values():
                running = self.states.running(queue.state)
                if running is not None:
                    return RunningSubmission(queue, running)
        return None

    def ping(self, number: int) -> None:
        self._post(link.Ping(number=number))

    def abort(self, submission: RunningSubmission, info: ErrorInfo) -> None:
        """Ask the engine to end a submission that has run for too long."""
        queue, sequence = submission.queue, submission.running.sequence
        if trace.active is not None:
            trace.active.event("submission aborted", queue.context.session, self.info.index, sequence)
        self._blame(queue, info.found)
        self._post(link.Abort(context=queue.context.number, queue=queue.handle, sequence=sequence, info=info))

    def kill_engine(self, reason: KillReason) -> None:
        """Kill an engine that makes no progress."""
        log.error("device %d: engine %d: %s", self.info.index, self.engine_pid, reason.info.found)
        if trace.active is not None:
            trace.active.event("engine hangs, killed", device=self.info.index, number=self.engine_pid)
        if self._engine is not None:
            self._kill_reason = reason
            self._engine.kill()

    def count(self, word: StatusWord) -> None:
        """Increment a word of the status page."""
        self._set_word(word, self._page.get(self.info.index, word) + 1)

    def count_time(self, latency: Latency, seconds: float) -> None:
        """Count something that took so long in a histogram of the status page."""
        self._page.count_time(self.info.index, latency, round(seconds * 1e9))

    def histograms(self) -> tuple[Histogram, ...]:
        """How long inferences, loads and compilations took."""
        return self._page.histograms(self.info.index)

    # ------------------------------------------------------------ contexts and memory

    def add_context(self, context: Context) -> None:
        self._check_usable()
        self.contexts[context.number] = context
        self._set_word(StatusWord.CONTEXTS, len(self.contexts))
        self.announce.context(context)

    def drop_context(self, context: Context, on_dropped: Callable[[], None]) -> None:
        """Remove a context; its memory counts until the engine has dropped it too, then call `on_dropped`."""
        del self.contexts[context.number]
        self._set_word(StatusWord.CONTEXTS, len(self.contexts))
        states = [queue.state for queue in context.queues.values()]
        self._draining[context.number] = (context, context.memory.allocated, states, on_dropped)
        for graph in context.graphs.values():
            self._loads.release(graph.image)
        context.close()
        if self._engine is None:
            self._finish_context_drop(context.number)
        else:
            self._post(link.ContextDrop(context=context.number))

    def _finish_context_drop(self, number: int) -> None:
        entry = self._draining.pop(number, None)
        if entry is not None:
            context, allocated, states, on_dropped = entry
            self.account(-allocated)
            for key in [key for key in self._draining_segments if key[0] == number]:
                self._finish_segment_drop(key)
            for state in states:
                self._free_state(context, state)
            on_dropped()

    def _free_state(self, context: Context, state: int) -> None:
        """Give back the record of a queue: no engine writes to it any more."""
        context.usage.end(self.info.index, state)
        self.states.free(state)

    def drop_sparse_segment(self, context: Context, segment: int, on_unmapped: Callable[[], None]) -> None:
        """Remove a sparse segment; call `on_unmapped` once the engine does not map it any more."""
        key = (context.number, segment)
        self._draining_segments[key] = on_unmapped
        if self._engine is None:
            self._finish_segment_drop(key)
        else:
            self._post(link.SegmentDrop(context=context.number, segment=segment, sparse=True))

    def _finish_segment_drop(self, key: tuple[int, int]) -> None:
        on_unmapped = self._draining_segments.pop(key, None)
        if on_unmapped is not None:
            on_unmapped()

    def account(self, size: int) -> None:
        """Count `size` more bytes (fewer if negative) as used."""
        self.memory_used += size
        self._set_word(StatusWord.MEMORY_USED, self.memory_used)
        if trace.active is not None:
            trace.active.counter("memory", self.memory_used, device=self.info.index)

    def check_memory(self, size: int, object: str) -> None:
        """Refuse an allocation that does not fit into what the device has left."""
        left = self.info.memory_total - self.memory_used
        if size > left:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                object,
                found=f"{size} bytes asked for",
                expected=f"at most {left} free bytes of {self.info.memory_total} on device {self.info.index}",
                hint="free memory, or start the daemon with a larger --memory",
            )

    def _check_usable(self) -> None:
        if self.state is DeviceState.FAILED:
            raise refuse(
                ZeResult.ERROR_DEVICE_LOST,
                f"device {self.info.index}",
                found="its engines end before they are ready",
                expected="a working engine",
                hint="read the daemon's log, then restart it",
            )

    # ------------------------------------------------------------ queues

    def drop_queue(self, queue: Queue, on_dropped: Callable[[], None]) -> None:
        """Remove a queue; call `on_dropped` once the engine runs none of its submissions any more."""
        key = (queue.context.number, queue.handle)
        self._draining_queues[key] = (queue, on_dropped)
        if self._engine is None:
            self._finish_queue_drop(key)
        else:
            self._post(link.QueueDrop(context=queue.context.number, queue=queue.handle))

    def _finish_queue_drop(self, key: tuple[int, int]) -> None:
        entry = self._draining_queues.pop(key, None)
        if entry is not None:
            queue, on_dropped = entry
            self._free_state(queue.context, queue.state)
            on_dropped()

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
        self._loads.wait(image, graph.context.ban_key, hint, on_loaded)

    def drop_graph(self, graph: Graph) -> None:
        self._post(link.GraphDrop(context=graph.context.number, graph=graph.handle))
        self._loads.release(graph.image)

    def _initialized_graphs(self) -> list[Graph]:
        graphs = [graph for context in self.contexts.values() for graph in context.graphs.values()]
        return [graph for graph in graphs if graph.initialized]

    # ------------------------------------------------------------ status

    def status(self, index: int) -> EngineStatus:
        """What it does; `index` is its number for who asks."""
        contexts = self.contexts.values()
        return EngineStatus(
            device=msgspec.structs.replace(self.info, index=index),
            state=STATE_NAMES[self.state],
            restarts=self.restarts,
            memory_used=self.memory_used,
            contexts=len(contexts),
            queues=sum(len(context.queues) for context in contexts),
            graphs=sum(len(context.graphs) for context in contexts),
            images=len(self.images),
            running=int(self.running_submission() is not None),
            **self._page.counters(self.info.index),
        )
