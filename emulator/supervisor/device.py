"""One emulated device: its engine process, what the engine must know, and what happens when it dies.

When an engine ends unexpectedly the device is reset: a new engine is told of every object again, images
are loaded again, and queues go on behind their last finished submission. The submission that was running
goes on with the command that was interrupted; what is to blame (`judgement`) fails with `ERROR_DEVICE_LOST`
and its queue is lost. Everybody else's commands complete.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import DeviceInfo, EngineStatus
from softnpu.emulator.interface.records import STATE_NAMES, DeviceState, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.ban_policy import BanPolicy
from softnpu.emulator.supervisor.child import Child
from softnpu.emulator.supervisor.images import Image, ImageState, ImageStore, Waiter
from softnpu.emulator.supervisor.objects import Context, Graph, Queue
from softnpu.emulator.supervisor.penalties import Penalties
from softnpu.emulator.supervisor.queue_states import QueueStates
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.reset_blame import judge_image, judge_queues
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.status_page import StatusPage
from softnpu.emulator.supervisor.watchdog import Suspect, Verdict, Watchdog

log = logging.getLogger(__name__)

ENGINE_MODULE = "softnpu.emulator.engine"
_FAILED_STARTS = 5
_SETTLED_S = 1.0
_LONGEST_PAUSE_S = 1.0


class Device:
    """The supervisor's side of one device."""

    def __init__(
        self,
        info: DeviceInfo,
        reactor: Reactor,
        page: StatusPage,
        settings: DaemonSettings,
        offenders: BanPolicy,
    ) -> None:
        self.info = info
        self.images = ImageStore()
        self.contexts: dict[int, Context] = {}
        self.memory_used = 0
        self.state = DeviceState.STARTING
        self.restarts = 0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        # what the engine may still use: with their memory and the records of their queues
        self._leaving: dict[int, tuple[int, list[int], Callable[[], None]]] = {}
        self._leaving_queues: dict[tuple[int, int], tuple[int, Callable[[], None]]] = {}
        self._loads: dict[int, None] = {}  # the engine loads one after the other, in this order
        self._reactor = reactor
        self._page = page
        self._setup = link.Setup(
            device=info.index,
            platform=info.platform,
            devices=len(settings.devices),
            tdr_ms=settings.tdr_ms,
            spin_us=settings.spin_us,
            self_check=settings.checks_itself,
        )
        self.states = QueueStates()
        # what an engine has computed and not brought to its place when it dies: nobody here maps it
        self._staging = linux.memfd("staging")
        self.penalties = Penalties(self.contexts, offenders, reactor, self._post, self.count)
        self._watchdog = Watchdog(self, reactor, settings.tdr_ms, settings.command_limit_s)
        self._verdict: Verdict | None = None
        self._failed_starts = 0  # engines in a row that were never ready
        self._early_deaths = 0  # and those that were not for long: the next one starts a little later
        self._ready_at = 0.0
        self._engine: Child | None = None
        page.set(info.index, StatusWord.PLATFORM, int(info.platform))
        page.set(info.index, StatusWord.MEMORY_TOTAL, info.memory_total)

    # ------------------------------------------------------------ engine process

    def start(self) -> None:
        """Starts the engine and tells it of everything that exists."""
        self._set_state(DeviceState.STARTING if self.restarts == 0 else DeviceState.RESETTING)
        engine = Child(
            ENGINE_MODULE,
            self._reactor,
            self._on_frame,
            self._on_engine_end,
            self.states.set_messages_waiting,
        )
        self._engine = engine
        self._page.set(self.info.index, StatusWord.ENGINE_PID, engine.pid)
        self.states.clear_liveness()
        # what clients have is told in many orders: until all are sent it may meet a handle that comes later
        self.states.set_messages_waiting(True)
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
                self._post_image(image)
        for context in self.contexts.values():
            self._announce_context(context)
        self._post(link.Resume())
        self.states.set_messages_waiting(engine.full)

    def close(self, timeout_s: float) -> None:
        """Ends the engine and closes all descriptors of the device."""
        self._watchdog.end()
        if self._engine is not None:
            self._engine.close(timeout_s)
            self._engine = None
        self.images.close()
        self.states.close()
        os.close(self._staging)

    def _set_state(self, state: DeviceState) -> None:
        self.state = state
        self._page.set(self.info.index, StatusWord.STATE, state)

    def _post(self, order: link.EngineCommand, fds: list[int] | None = None) -> None:
        if self._engine is not None:
            self._engine.post(0, order, fds or [])

    def order_injection(
        self, order: link.InjectionAdd | link.InjectionDrop, fds: list[int] | None = None
    ) -> None:
        """Tells the engine, if there is one; it looks before the next submission whether it was told."""
        if self._engine is not None:
            self._post(order, fds)
            self.states.count_injection()

    def _on_frame(self, _request: int, body: memoryview, _fds: list[int]) -> None:
        report = link.report_decoder.decode(body)
        match report:
            case link.Ready():
                self._ready_at = time.monotonic()
                self._set_state(DeviceState.READY)
                log.info("device %d: engine %d is ready", self.info.index, self._engine_pid())
                self.on_ready()
            case link.ContextDropped(context=number):
                self._forget_context(number)
            case link.QueueDropped(context=number, queue=queue):
                self._forget_queue((number, queue))
            case link.ImageLoaded(image=number, load_ms=load_ms, info=info):
                self._loads.pop(number, None)
                image = self.images.find(number)
                if image is not None:
                    image.attempts = 0
                    image.finish_loading(info, load_ms)
            case link.SubmissionFailed():
                log.warning(
                    "device %d: context %d, submission %d: %s",
                    self.info.index,
                    report.context,
                    report.sequence,
                    report.info,
                )
                self.penalties.note_failure(report)

    def _on_engine_end(self, reason: str) -> None:
        log.error("device %d: engine %d %s", self.info.index, self._engine_pid(), reason)
        self._engine = None
        self._page.set(self.info.index, StatusWord.ENGINE_PID, 0)
        # with no engine nothing of a departing context can be in use any more
        for key in list(self._leaving_queues):
            self._forget_queue(key)
        for number in list(self._leaving):
            self._forget_context(number)
        self._watchdog.end()
        alone = self.state is DeviceState.READY and self.suspect() is None
        loading = self.images.find(next(iter(self._loads), 0))
        self._loads.clear()
        verdict, self._verdict = self._verdict, None
        for queue in judge_queues(self.contexts.values(), self.states, verdict, reason):
            self.penalties.blame(queue, reason if verdict is None else verdict.info.found)
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
        self._page.set(self.info.index, StatusWord.RESTARTS, self.restarts)
        pause = min(_LONGEST_PAUSE_S, 0.2 * max(0, self._early_deaths - 1))
        self._reactor.after(pause, self.start)

    def _blame_image(self, image: Image, reason: str) -> None:
        first_time = image.state is ImageState.LOADING
        if not judge_image(image, reason):
            return
        # the next engine is not told of it: its graphs have to be initialised again
        for graph in self._initialized_graphs():
            if graph.image is image:
                graph.initialized = False
        if first_time and image.loader:
            self.penalties.blame_loader(image.loader, f"{reason} while it loaded a graph")

    def _fail(self) -> None:
        self._set_state(DeviceState.FAILED)
        os.ftruncate(self._staging, 0)
        log.error("device %d: its engines end before they are ready, the device is given up", self.info.index)
        self.on_ready()

    def _engine_pid(self) -> int:
        return (
            self._engine.pid
            if self._engine is not None
            else self._page.get(self.info.index, StatusWord.ENGINE_PID)
        )

    # ------------------------------------------------------------ hangs, and who is to blame

    @property
    def is_ready(self) -> bool:
        return self.state is DeviceState.READY

    @property
    def needed(self) -> bool:
        """Whether anybody waits for the engine: clients, or the memory of those that have left."""
        return bool(self.contexts or self._leaving or self._leaving_queues)

    @property
    def loading(self) -> bool:
        """Whether the engine has been told to load a graph and has not answered."""
        return bool(self._loads)

    def suspect(self) -> Suspect | None:
        """The submission that runs."""
        for context in self.contexts.values():
            for queue in context.queues.values():
                running = self.states.running(queue.state)
                if running is not None:
                    return Suspect(queue, running)
        return None

    def ping(self, number: int) -> None:
        self._post(link.Ping(number=number))

    def abort(self, suspect: Suspect, info: ErrorInfo) -> None:
        """Asks the engine to end a submission that has run for too long."""
        queue, sequence = suspect.queue, suspect.running.sequence
        self.penalties.blame(queue, info.found)
        self._post(link.Abort(context=queue.context.number, queue=queue.handle, sequence=sequence, info=info))

    def kill_engine(self, verdict: Verdict) -> None:
        """The watchdog has given it up."""
        log.error("device %d: engine %d: %s", self.info.index, self._engine_pid(), verdict.info.found)
        if self._engine is not None:
            self._verdict = verdict
            self._engine.kill()

    def count(self, word: StatusWord) -> None:
        """One more, on the status page."""
        self._page.set(self.info.index, word, self._page.get(self.info.index, word) + 1)

    # ------------------------------------------------------------ contexts and memory

    def add_context(self, context: Context) -> None:
        self._check_usable()
        self.contexts[context.number] = context
        self._page.set(self.info.index, StatusWord.CONTEXTS, len(self.contexts))
        self._post(link.ContextAdd(context=context.number, session=context.session), [context.doorbell])

    def drop_context(self, context: Context, gone: Callable[[], None]) -> None:
        """Forgets a context; its memory counts as used until the engine has let go, then `gone` is called."""
        del self.contexts[context.number]
        self._page.set(self.info.index, StatusWord.CONTEXTS, len(self.contexts))
        states = [queue.state for queue in context.queues.values()]
        self._leaving[context.number] = (context.memory.allocated, states, gone)
        for graph in context.graphs.values():
            self._release_image(graph.image)
        context.close()
        if self._engine is None:
            self._forget_context(context.number)
        else:
            self._post(link.ContextDrop(context=context.number))

    def _forget_context(self, number: int) -> None:
        entry = self._leaving.pop(number, None)
        if entry is not None:
            allocated, states, gone = entry
            self.account(-allocated)
            for state in states:
                self.states.free(state)
            gone()

    def account(self, size: int) -> None:
        """Counts `size` more bytes (or fewer) as used."""
        self.memory_used += size
        self._page.set(self.info.index, StatusWord.MEMORY_USED, self.memory_used)

    def check_memory(self, size: int, object: str) -> None:
        """Refuses an allocation that does not fit into what the device has left."""
        left = self.info.memory_total - self.memory_used
        if size > left:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                object,
                found=f"{size} bytes asked for",
                expected=f"at most the {left} free bytes of {self.info.memory_total} on device {self.info.index}",
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

    def announce_segment(self, context: Context, segment: int) -> None:
        record = context.memory.segments[segment]
        self._post(link.SegmentAdd(context=context.number, segment=segment, size=record.size), [record.fd])

    def drop_segment(self, context: Context, segment: int) -> None:
        self._post(link.SegmentDrop(context=context.number, segment=segment))

    def announce_memory(self, context: Context, handle: int) -> None:
        memory = context.allocations[handle]
        self._post(
            link.MemoryAdd(
                context=context.number,
                memory=handle,
                segment=memory.segment.number,
                offset=memory.offset,
                size=memory.size,
            )
        )

    def drop_memory(self, context: Context, handles: tuple[int, ...]) -> None:
        self._post(link.MemoryDrop(context=context.number, memory=handles))

    # ------------------------------------------------------------ queues

    def announce_queue(self, queue: Queue) -> None:
        self._post(
            link.QueueAdd(
                context=queue.context.number,
                queue=queue.handle,
                ring=queue.ring.handle,
                slots=queue.slots,
                priority=queue.priority,
                turbo=queue.turbo,
                state=queue.state,
                condemned=queue.condemned,
                background=self.penalties.in_background(queue),
                condemned_info=queue.condemned_info,
            )
        )
        if queue.lost is not None:
            self.penalties.lose(queue, queue.lost)

    def drop_queue(self, queue: Queue, gone: Callable[[], None]) -> None:
        """Forgets a queue; calls `gone` once the engine runs none of its submissions any more."""
        key = (queue.context.number, queue.handle)
        self._leaving_queues[key] = (queue.state, gone)
        if self._engine is None:
            self._forget_queue(key)
        else:
            self._post(link.QueueDrop(context=queue.context.number, queue=queue.handle))

    def _forget_queue(self, key: tuple[int, int]) -> None:
        entry = self._leaving_queues.pop(key, None)
        if entry is not None:
            state, gone = entry
            self.states.free(state)
            gone()

    # ------------------------------------------------------------ graphs

    def load(self, graph: Graph, tell: Waiter) -> None:
        """Brings the graph's image onto the device if it is not there, then calls `tell(fault, ms)`."""
        self._check_usable()
        image = graph.image
        if image.state is ImageState.LOADED:
            tell(None, 0.0)
            return
        self.penalties.check(graph.context.owner, "graph")
        image.waiting.append(tell)
        if image.state is ImageState.COMPILED:
            image.state, image.loader = ImageState.LOADING, graph.context.owner
            self._post_image(image)

    def announce_graph(self, graph: Graph) -> None:
        self._post(link.GraphAdd(context=graph.context.number, graph=graph.handle, image=graph.image.number))

    def drop_graph(self, graph: Graph) -> None:
        self._post(link.GraphDrop(context=graph.context.number, graph=graph.handle))
        self._release_image(graph.image)

    def _release_image(self, image: Image) -> None:
        told = image.state is not ImageState.COMPILED or bool(image.loader)
        if not self.images.release(image):
            return
        if told:
            self._loads.pop(image.number, None)
            self._post(link.ImageUnload(image=image.number))
        if image.waiting:
            info = ErrorInfo(
                result=ZeResult.ERROR_INVALID_ARGUMENT,
                object="graph",
                found="destroyed while it was being loaded",
                expected="a live graph",
            )
            image.finish_loading(info, 0.0)

    def _initialized_graphs(self) -> list[Graph]:
        graphs = [graph for context in self.contexts.values() for graph in context.graphs.values()]
        return [graph for graph in graphs if graph.initialized]

    def _post_image(self, image: Image) -> None:
        order = link.ImageLoad(
            image=image.number,
            blob_length=image.answer.blob_length,
            placement_length=image.answer.placement_length,
            weights=image.weights,
            check=image.must_be_compared,
        )
        image.loads += 1
        self._loads[image.number] = None
        self._post(order, image.fds)

    # ------------------------------------------------------------ all at once, and status

    def _announce_context(self, context: Context) -> None:
        self._post(link.ContextAdd(context=context.number, session=context.session), [context.doorbell])
        for segment in context.memory.segments:
            self.announce_segment(context, segment)
        for handle in context.allocations:
            self.announce_memory(context, handle)
        for graph in context.graphs.values():
            if graph.initialized:
                self.announce_graph(graph)
        for queue in context.queues.values():
            self.announce_queue(queue)

    def status(self) -> EngineStatus:
        def word(name: StatusWord) -> int:
            return self._page.get(self.info.index, name)

        contexts = self.contexts.values()
        return EngineStatus(
            device=self.info,
            engine_pid=word(StatusWord.ENGINE_PID),
            state=STATE_NAMES[self.state],
            restarts=self.restarts,
            memory_used=self.memory_used,
            contexts=len(contexts),
            queues=sum(len(context.queues) for context in contexts),
            graphs=sum(len(context.graphs) for context in contexts),
            images=len(self.images),
            submissions=word(StatusWord.SUBMISSIONS),
            commands=word(StatusWord.COMMANDS),
            inferences=word(StatusWord.INFERENCES),
            faults=word(StatusWord.FAULTS),
            busy_ns=word(StatusWord.BUSY),
            staged_bytes=word(StatusWord.STAGED),
            heartbeat_ns=word(StatusWord.HEARTBEAT),
            hangs=word(StatusWord.HANGS),
            aborted=word(StatusWord.ABORTED),
            offences=word(StatusWord.OFFENCES),
            refusals=word(StatusWord.REFUSALS),
            tile_busy_ns=word(StatusWord.TILE_BUSY),
            overlapped=word(StatusWord.OVERLAPPED),
            running=int(self.suspect() is not None),
        )
