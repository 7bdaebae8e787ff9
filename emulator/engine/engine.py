"""The engine's loop: poll rings, run submissions, handle the supervisor's messages, sleep when idle.

After the last submission it polls on for a bounded time: waking a process costs more than a round trip.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from softnpu.emulator.common import failpoints, linux
from softnpu.emulator.common.spin import TURBO_SPIN_NS, SpinBudget
from softnpu.emulator.engine import failures, tracing
from softnpu.emulator.engine.commands.modelled_runs import ModelledRuns
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.device_clock import DeviceClock, modelled_times
from softnpu.emulator.engine.fast_path.native_calls import LARGE, FastPath, library
from softnpu.emulator.engine.images import ImageLoader
from softnpu.emulator.engine.memory.staging import Staging
from softnpu.emulator.engine.queues.chores import Chore, Chores
from softnpu.emulator.engine.queues.context import EngineContext
from softnpu.emulator.engine.queues.queue import EngineQueue, Place
from softnpu.emulator.engine.queues.queue_table import LOOK_NS, MANY, QueueTable
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.engine.running import runner
from softnpu.emulator.engine.running.faults import InjectedFaults
from softnpu.emulator.engine.running.overlap import Overlap
from softnpu.emulator.engine.share import Share
from softnpu.emulator.engine.supervisor_channel import SupervisorChannel
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.messages import Clock, Message
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.kernels.host import host as kernels
from softnpu.emulator.platforms import check_platform

_POLL_EVERY_NS = 20_000
_MAX_EVENTS = 64  # without a bound `poll` would allocate 12 KiB each time
_FEW_DOORBELLS = 8  # of one session
_CHORES_NS = 300_000  # between two polls during a submission
_FAILPOINTS: dict[type[Message], str] = {
    link.ContextAdd: "engine.context",
    link.QueueAdd: "engine.queue",
    link.SegmentAdd: "engine.map",
    link.MemoryAdd: "engine.allocate",
    link.MemoryDrop: "engine.free",
    link.ContextDrop: "engine.close",
}


class Engine:
    """The engine of one device. Single-threaded, except for the thread that loads images."""

    def __init__(self, channel: Channel, setup: link.Setup, fds: Sequence[int], ready: link.Ready) -> None:
        states_fd, page_fd, staging_fd = fds
        self._ready = ready
        self._tdr_ms = setup.tdr_ms
        states = linux.map_shared(states_fd, link.STATES_SIZE)
        self._states = memoryview(states).cast("Q")
        self._liveness = self._states[link.LIVENESS // 8 :]
        self._supervisor = SupervisorChannel(channel, self._liveness, self._handle)
        self.send = self._supervisor.send
        self._counters = Counters(page_fd, setup.devices, setup.device)
        self._scheduler = Scheduler()
        self._staging = Staging(staging_fd, setup.session_memory)
        self._spin = SpinBudget(setup.spin_us * 1000)
        self._contexts: dict[int, EngineContext] = {}
        self._unmapped: deque[link.SegmentUnmapped] = deque()
        self._shares: dict[int, Share] = {}
        self._doorbells: dict[int, EngineContext] = {}
        self._queues = QueueTable()
        self._faults = InjectedFaults(setup.tdr_ms)
        platform = check_platform(setup.platform)
        clock = None
        if setup.clock is not Clock.HOST:
            clock = DeviceClock(platform, self._counters.device_clock_ns, paced=setup.clock is Clock.PACED)
        modelled = modelled_times(platform, clock, setup.inference_us * 1000)
        # cached images have no model to predict from; an entry may have ended an engine
        cache = CpuCache.open() if setup.cpu_cache and clock is None and not setup.after_reset else None
        errors = InternalErrors("engine", f"{os.getpid()}-")
        self._images = ImageLoader(
            self.send, self._faults.before_load, modelled, setup.self_check, cache, errors
        )
        kernels.begin(lambda name: self.send(link.KernelsNeeded(helper=name)), setup.tdr_ms, setup.kernels)
        self._poller = select.epoll()
        for fd in (channel.fileno(), self._images.loaded_fd, self._images.changes.fd):
            self._poller.register(fd, select.EPOLLIN)
        self._resumed = False  # every existing object has been announced
        self._poll_due_ns = 0
        self._overlap = Overlap(self._queues, self._counters, setup.after_reset)
        self._runner = runner.make(
            self,
            self._queues,
            self._scheduler,
            self._counters,
            self._overlap,
            self._faults,
            platform,
            None if clock is None else ModelledRuns(clock, self._counters),
            errors,
            setup.tdr_ms,
        )
        self._fast_path: FastPath | None = None  # only Python supports the modelled clock
        if clock is None and (found := library()) is not None:
            self._fast_path = self._runner.fast_path = FastPath(
                found,
                self._queues,
                self._scheduler,
                self._counters,
                self._liveness[link.INJECTION_MESSAGES :],
                self._poller.fileno(),
                self._spin,
                self._overlap.copies,
                platform.timer_ns_per_tick,
            )

    @property
    def alive(self) -> bool:
        """Whether the supervisor is alive."""
        return self._supervisor.alive

    def run(self) -> None:
        """Execute until the supervisor closes the channel."""
        if failpoints.active is not None:
            failpoints.hit("engine.handshake")
        # before any message: a crash while loading is then blamed on the image
        self.send(replace(self._ready, loader=self._images.thread_id))
        self._counters.write()
        # no queue may run before every queue has settled what a dead engine left unfinished; the wait ends
        # with the supervisor, and its watchdog pings meanwhile
        while self.alive and not self._resumed:
            self._supervisor.wait()
            self._supervisor.read()
        supervisor, queues, chores = self._supervisor, self._queues, self._queues.chores.waiting
        while supervisor.alive:
            if self._fast_path is not None and self._fast_path.ready and self._run_prepared(self._fast_path):
                continue
            if queues.aside.paced:
                queues.wake_paced(time.monotonic_ns())
            turn = self._scheduler.pick(queues.awake, chores)
            if turn is None:
                if not self._spin_for_work():
                    self._sleep()
            elif self._liveness[link.INJECTION_MESSAGES] != self._faults.messages:
                supervisor.read_all()  # an injection applies from the next submission on
            elif isinstance(turn, Chores):
                self._do_chore(turn)
                self._poll_if_due()
            else:
                self._runner.run(self._overlap.first_due(turn))
                self._poll_if_due()

    def _run_prepared(self, fast_path: FastPath) -> bool:
        """Run prepared submissions in C++; return False if Python has to run the next one."""
        queues = self._queues
        busy = queues.aside or queues.chores.waiting or self._unmapped or self._staging.pending
        busy = busy or not queues.awake or queues.awake.has_large_group(LARGE)
        observed = failpoints.active is not None or trace.active is not None or self._overlap.has_early
        if busy or observed or not all(queue.is_between for queue in queues.awake):
            fast_path.ready = False
            return False
        if self._liveness[link.INJECTION_MESSAGES] != self._faults.messages:
            return False
        events = fast_path.call()
        if events is None:
            return False
        self._handle_events(events)
        queues.put_idle_to_sleep(time.monotonic_ns())
        return True

    def _do_chore(self, chores: Chores) -> None:
        """Run a part of a session's chores, on its account."""
        start = chores.ran_ns = time.monotonic_ns()
        try:
            self._queues.chores.run_part(chores)
        except Exception:  # noqa: BLE001
            failures.give_up("it cannot do what is to be done for a session")
        chores.share.spent_ns[chores.level] += time.monotonic_ns() - start

    # ------------------------------------------------------------ waiting for work

    def _poll_if_due(self) -> None:
        """Poll between submissions, but not after every one."""
        now = time.monotonic_ns()
        self._count(now)
        if now >= self._poll_due_ns:
            self._poll(0)
            if self._queues.aside.blocked:
                self._abort_overdue()
            self._queues.put_idle_to_sleep(now)

    def poll_doorbells(self) -> None:
        """Poll while a submission runs. Failures here are not its fault."""
        try:
            now = time.monotonic_ns()
            self._count(now)
            self._poll(0)
            self._queues.put_idle_to_sleep(now)
        except Exception:  # noqa: BLE001
            failures.give_up("it cannot look at its rings")

    def _count(self, now_ns: int | None) -> None:
        """Write the device's counters, at most once per millisecond unless about to sleep."""
        if now_ns is None or now_ns >= self._counters.due_ns:
            self._counters.queued = self._queues.log_waiting(now_ns or time.monotonic_ns())
            self._counters.write(now_ns)
            self._counters.due_ns += min(len(self._queues.awake), MANY) * LOOK_NS

    def _poll(self, timeout_s: float) -> None:
        while self._unmapped:
            self.send(self._unmapped.popleft())
        if self._staging.pending:
            self._staging.settle()
        self._handle_events([fd for fd, _ in self._poller.poll(timeout_s, _MAX_EVENTS)])
        self._poll_due_ns = time.monotonic_ns() + _POLL_EVERY_NS

    def _handle_events(self, fds: Sequence[int]) -> None:
        rung: dict[Share, int] = {}
        for fd in fds:
            context = self._doorbells.get(fd)
            if context is not None:
                count = rung[context.share] = rung.get(context.share, 0) + 1
                self._answer_doorbell(context, at_once=count <= _FEW_DOORBELLS)
            elif fd == self._images.loaded_fd:
                os.eventfd_read(fd)
                self._queues.retry_loads()
            elif fd == self._supervisor.fileno():
                self._supervisor.read_some()
            elif fd == self._images.changes.fd:
                self._drop_changed()

    def _drop_changed(self) -> None:
        """Evict images whose weights were written to: their users reload and re-verify them."""
        for image in self._images.changes.read():
            self._images.evict(image, self.send)
            for context in self._contexts.values():
                self._queues.drop_lookups(context, context.drop_programs_of(image))

    def _answer_doorbell(self, context: EngineContext, *, at_once: bool) -> None:
        if failpoints.active is not None:
            asleep = self._queues.asleep_with_work(context.number)
            if self._faults.drops_doorbell(context.session, asleep):
                return
        self._queues.answer_doorbell(context, at_once=at_once)

    def _spin_for_work(self) -> bool:
        """Poll the awake rings for a bounded time; return True as soon as one has work."""
        awake = self._queues.awake
        if not awake or len(awake) > MANY or self._queues.aside:
            return False
        limit = TURBO_SPIN_NS if any(queue.turbo for queue in awake) else self._spin.limit_ns()
        if not limit:
            return False
        start, rings = time.monotonic_ns(), list(awake)
        end, poll_at = start + limit, start + _POLL_EVERY_NS
        while (now := time.monotonic_ns()) < end:
            for queue in rings:
                if queue.pending():
                    self._spin.hit()
                    return True
            if now >= poll_at:
                self._poll(0)
                rings, poll_at = list(awake), now + _POLL_EVERY_NS
                if self._queues.chores.waiting:
                    return True
        self._spin.miss()
        return False

    def _sleep(self) -> None:
        """Put every ring to sleep, check again, then wait for a doorbell, a message or a deadline."""
        self._queues.put_to_sleep_some()
        if self._queues.awake:
            return
        self._count(None)
        deadline_ns = self._queues.aside.deadlines.first_ns()
        if self._queues.aside.paced:
            self._sleep_until_paced()
        elif deadline_ns is None:
            self._poll(-1.0)
        else:
            self._poll(max(0.0, (deadline_ns - self._idle_clock_ns()) / 1e9))
        if self._queues.aside.blocked:
            self._abort_overdue()

    def _sleep_until_paced(self) -> None:
        """Sleep until the next modelled time is over; `select` takes microseconds, `epoll` milliseconds."""
        due_ns = self._queues.aside.ends.first_ns() or 0
        deadline_ns = self._queues.aside.deadlines.first_ns()
        left_ns = due_ns - time.monotonic_ns()
        if deadline_ns is not None:
            left_ns = min(left_ns, deadline_ns - self._idle_clock_ns())
        select.select([self._poller], [], [], max(0, left_ns) / 1e9)
        self._poll(0)

    def _idle_clock_ns(self) -> int:
        """Return the clock of wait deadlines, which stands still while the device is busy."""
        return time.monotonic_ns() - self._counters.busy_ns

    # ------------------------------------------------------------ overdue waits

    def _abort_overdue(self) -> None:
        """Abort overdue submissions; their queues are lost."""
        for queue in self._queues.take_overdue(self._idle_clock_ns()):
            self._runner.end_waiting(queue, failures.waited_too_long(self._tdr_ms))

    def _end_dropped_doorbells(self) -> None:
        """Abort submissions whose doorbell was dropped by an injected fault, as if overdue."""
        for queue, info in self._faults.take_overdue():
            if queue.place is Place.ASLEEP:
                self._runner.end_waiting(queue, info)
        self._faults.prune()

    # ------------------------------------------------------------ messages

    def read_messages(self) -> None:
        """Handle pending messages from the supervisor, of many only some; run some chores.

        A submission may run for minutes, and a dead client's memory must be freed before it ends.
        """
        self._supervisor.read_some()
        end = time.monotonic_ns() + _CHORES_NS
        while self.alive and (chores := self._queues.chores.next()) is not None:
            self._do_chore(chores)
            if time.monotonic_ns() >= end:
                return

    def _handle(self, packet: Packet) -> None:
        message = link.command_decoder.decode(packet.body)
        if failpoints.active is not None and type(message) in _FAILPOINTS:
            failpoints.hit(_FAILPOINTS[type(message)])
        match message:
            case link.Resume():
                self._resume()
            case link.ContextAdd():
                self._add_context(message, packet.take_fds(1)[0])
            case link.ContextDrop():
                self._drop_context(self._contexts.pop(message.context))
            case link.ContextRelease() | link.GraphDrop():
                self._give_back(message)
            case link.SegmentAdd():
                self._contexts[message.context].space.add_segment(message, packet.take_fds(1)[0])
            case link.SegmentDrop():
                self._drop_segment(message)
            case link.MemoryAdd():
                self._contexts[message.context].space.add_placed(message.allocations)
            case link.MemoryDrop():
                self._drop_memory(message)
            case link.QueueAdd():
                self._add_queue(message)
            case link.QueueWorkload() | link.QueueDrop() | link.QueueLose():
                self._change_queue(message)
            case link.Abort():
                self._runner.abort(message)
            case link.Ping():
                self._answer_ping(message.number)
            case link.ImageExpected() | link.ImageLoad() | link.ImageUnload() | link.ImageEvict():
                self._handle_image(message, packet)
            case link.GraphAdd():
                image = self._images.image(message.image)
                self._contexts[message.context].space.add_graph(message.graph, image)
            case link.InjectionAdd():
                self._faults.add(message, packet.take_fds(1)[0])
            case link.InjectionDrop():
                self._faults.drop(message)
            case link.TraceBegin() | link.TraceEnd():
                tracing.change(message, packet, self._counters)
            case link.KernelsStarted():
                kernels.arrive(packet.take_fds(1)[0], message.helper)
            case link.Setup():
                raise RuntimeError("the supervisor sent a second Setup")

    def _handle_image(self, message: link.ImageCommand, packet: Packet) -> None:
        match message:
            case link.ImageExpected():
                self._images.expect(message)
            case link.ImageLoad():
                first = link.IMAGE_STATES_AT // 8 + message.state * link.IMAGE_WORDS
                counts = self._states[first : first + link.IMAGE_WORDS]
                self._images.load(message, packet.take_fds(packet.fd_count), counts)
            case link.ImageUnload():
                self._images.unload(message.image)
                self._queues.retry_loads()
            case link.ImageEvict():
                self._images.evict(message.image, self.send)
                linux.trim_heap()

    def _resume(self) -> None:
        """Resume the queues once all objects are announced, with the results staged by a dead engine."""
        for queue in self._queues:
            if not queue.closed:  # by a message read meanwhile
                self._runner.resume(queue)
                self._faults.settle(queue)
        self._staging.recover(self._queues)
        self._resumed = True

    def _answer_ping(self, number: int) -> None:
        if failpoints.active is not None:
            self._end_dropped_doorbells()
        # CPU time first: the supervisor reads it once it sees the number
        others_ns = time.process_time_ns() - time.thread_time_ns() + kernels.ran_ns
        self._liveness[link.LIVENESS_OTHER_THREADS_NS] = others_ns
        self._liveness[link.LIVENESS_PING] = number

    def _add_context(self, message: link.ContextAdd, doorbell: int) -> None:
        share = self._shares.setdefault(message.session or -message.context, Share())
        share.contexts += 1
        context = EngineContext(
            message.context, message.session, doorbell, share, self._staging, self._supervisor.read_all
        )
        self._contexts[message.context] = self._doorbells[doorbell] = context

    def _add_queue(self, message: link.QueueAdd) -> None:
        context = self._contexts[message.context]
        try:
            context.space.check_mapped(message.ring)
        except Refused as error:
            if not context.space.lacks_addresses:
                raise  # it was short of descriptors: the next engine may not be
            self.send(link.QueueRefused(context=message.context, queue=message.queue, info=error.info))
            return
        queue = EngineQueue(context, message, context.space.memory(message.ring), self._states)
        queue.device_ns = self._counters.device_clock_ns
        if not self._queues.of(context.number):
            # edge-triggered: every write is reported once, without reading its counter
            self._poller.register(context.doorbell, select.EPOLLIN | select.EPOLLET)
        self._queues.add(queue)
        if self._resumed:
            self._runner.resume(queue)
        if queue.place is Place.ASLEEP:
            self._queues.put_to_sleep([queue])

    def _change_queue(self, message: link.QueueWorkload | link.QueueDrop | link.QueueLose) -> None:
        queue = self._queues.get(message.context, message.queue)
        match message:
            case link.QueueDrop():
                if queue is not None:
                    self._drop_queue(queue)
                self._runner.report_dropped(link.QueueDropped(context=message.context, queue=message.queue))
            case link.QueueWorkload() if queue is not None:
                self._queues.set_background(queue, message.background)
            case link.QueueLose() if queue is not None:
                queue.lose(message.info)
                self._queues.retry(queue)

    def _drop_segment(self, message: link.SegmentDrop) -> None:
        mapping = self._contexts[message.context].space.drop_segment(message.segment)
        if not message.reported:
            return
        report = link.SegmentUnmapped(context=message.context, segment=message.segment)
        if mapping is None:
            self._unmapped.append(report)
        else:
            # memory of a blocked submission stays mapped until that has ended
            weakref.finalize(mapping.shared.buffer, self._unmapped.append, report)

    def _drop_memory(self, message: link.MemoryDrop) -> None:
        context = self._contexts[message.context]
        self._queues.drop_lookups(context, message.memory)
        for handle in message.memory:
            context.drop(handle)

    def _give_back(self, message: link.ContextRelease | link.GraphDrop) -> None:
        context = self._contexts[message.context]
        if isinstance(message, link.GraphDrop):
            self._queues.drop_lookups(context, (message.graph,))
            context.drop(message.graph)
        else:
            self._queues.drop_lookups(context)
            context.release()

    def _drop_queue(self, queue: EngineQueue) -> None:
        self._queues.drop(queue)
        self._overlap.cancel(queue)
        if not self._queues.of(queue.context.number):  # it would be rung in vain
            self._poller.unregister(queue.context.doorbell)

    def _drop_context(self, context: EngineContext) -> None:
        for queue in list(self._queues.of(context.number)):
            self._drop_queue(queue)
        del self._doorbells[context.doorbell]
        self._queues.drop_context(context.number)
        os.close(context.doorbell)
        self._queues.chores.add(context.share, context.level, self._close(context))
        context.share.contexts -= 1
        if not context.share.contexts:
            del self._shares[context.session or -context.number]

    def _close(self, context: EngineContext) -> Chore:
        """Release a context's resources; its queues are already dropped."""
        yield from context.close_in_parts()
        self._runner.report_dropped(link.ContextDropped(context=context.number))
