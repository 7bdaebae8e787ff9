"""The engine's loop: looks at rings, runs submissions, sleeps when there is nothing to do.

A queue is *hot* while the engine looks at its ring by itself, and asleep otherwise: then the driver has
to ring the doorbell. After the last submission the engine goes on looking for a bounded time (`spin`),
because waking a sleeping process costs more than everything else in a round trip.
"""

from __future__ import annotations

import logging
import os
import select
import time

from softnpu.emulator.common import failpoints, linux
from softnpu.emulator.common.spin import TURBO_SPIN_NS, SpinBudget
from softnpu.emulator.engine.context import EngineContext, Mapping
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.faults import EngineFaults
from softnpu.emulator.engine.images import ImageLoader
from softnpu.emulator.engine.overlap import Overlap
from softnpu.emulator.engine.queue import EngineQueue, Submission
from softnpu.emulator.engine.runner import Runner
from softnpu.emulator.engine.scheduler import Scheduler, Share
from softnpu.emulator.engine.staging import Staging
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.messages import Message, encode
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.platforms import check_platform

log = logging.getLogger(__name__)

_POLL_EVERY_NS = 20_000
_EVENTS = 64  # taken at once; without a bound there would be 12 KiB to allocate, each time
_FEW = 8  # hot queues: looking at so many costs less than a thought about them
_COOL_EVERY_NS = 5_000_000
_COOL_AFTER_NS = 20_000_000
_ORDERS_S = 0.05
_STEPS: dict[type[Message], str] = {
    link.ContextAdd: "engine.context",
    link.QueueAdd: "engine.queue",
    link.SegmentAdd: "engine.map",
    link.MemoryAdd: "engine.allocate",
    link.MemoryDrop: "engine.free",
    link.ContextDrop: "engine.close",
}
"""Orders with a fail-point."""


class Engine:
    """The engine of one device. Single-threaded, but for the thread that loads images."""

    def __init__(
        self, channel: Channel, setup: link.Setup, states_fd: int, page_fd: int, staging_fd: int
    ) -> None:
        self._channel = channel
        self._setup = setup
        states = linux.map_shared(states_fd, link.STATES_SIZE)
        self._states = memoryview(states).cast("Q")
        self._liveness = self._states[link.LIVENESS // 8 :]
        self.counters = Counters(page_fd, setup.devices, setup.device)
        self.scheduler = Scheduler()
        self.staging = Staging(staging_fd)
        self._spin = SpinBudget(setup.spin_us * 1000)
        self._contexts: dict[int, EngineContext] = {}
        self._shares: dict[int, Share] = {}
        self._doorbells: dict[int, EngineContext] = {}
        self._hot: list[EngineQueue] = []
        self._blocked: list[EngineQueue] = []
        self.faults = EngineFaults(setup.tdr_ms)
        self._images = ImageLoader(self._image_loaded, self.faults, setup.self_check)
        self._kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.epoll()
        self._poller.register(channel.fileno(), select.EPOLLIN)
        self._poller.register(self._kick, select.EPOLLIN)
        self.alive = True
        self._resumed = False  # every object that exists has been announced
        self._poll_due_ns = 0
        self._cool_due_ns = 0
        platform = check_platform(setup.platform)
        self.ns_per_tick, self.tiles = platform.timer_ns_per_tick, platform.tiles
        self.overlap = Overlap(self, setup.after_reset)
        self._runner = Runner(self, setup.tdr_ms)

    def run(self) -> None:
        """Executes until the supervisor closes the channel."""
        if failpoints.active is not None:
            failpoints.hit("engine.handshake")
        # before any order is read: what an image does to the engine that loads it is the image's fault then
        self.send(link.Ready())
        self.counters.write()
        # a queue must not run before every other queue has settled what a dead engine left unfinished; the
        # wait ends with the supervisor, and its watchdog pings meanwhile
        while self.alive and not self._resumed:
            self._channel.wait_readable(None)
            self.read_orders()
        while self.alive:
            queue = self.scheduler.pick(self._hot)
            if queue is None:
                if not self._spin_for_work():
                    self._sleep()
            elif self._liveness[link.INJECTION_MESSAGES] != self.faults.orders:
                self.catch_up()  # who has asked for a fault relies on it from the next submission on
            else:
                self._runner.run(queue)
                self._look_outside()

    # ------------------------------------------------------------ waiting for work

    def _look_outside(self) -> None:
        """Between submissions: doorbells of other clients and orders, but not at every turn."""
        now = time.monotonic_ns()
        self.counters.tick(now)
        if now >= self._poll_due_ns:
            self._poll(0)
            if self._blocked:
                self._abort_overdue()
            self._cool(now)

    def _poll(self, timeout_s: float) -> None:
        if self.staging.pending:
            self.staging.settle()
        for fd, _ in self._poller.poll(timeout_s, _EVENTS):
            context = self._doorbells.get(fd)
            if context is not None:
                self._answer_doorbell(context)
            elif fd == self._kick:
                os.eventfd_read(self._kick)
                self.retry_blocked()
            elif fd == self._channel.fileno():
                self.read_orders()
        self._poll_due_ns = time.monotonic_ns() + _POLL_EVERY_NS

    def _answer_doorbell(self, context: EngineContext) -> None:
        if failpoints.active is not None and self.faults.overhears(context, self._asleep_with_work(context)):
            return
        for queue in context.queues.values():
            if queue.pending() and queue.blocked is None and queue not in self._hot:
                self._heat(queue)
        if self._blocked:
            self.retry_blocked()

    def _asleep_with_work(self, context: EngineContext) -> list[EngineQueue]:
        return [queue for queue in context.queues.values() if queue.pending() and queue not in self._hot]

    def _heat(self, queue: EngineQueue) -> None:
        queue.set_asleep(False)
        self._hot.append(queue)

    def _cool(self, now: int) -> None:
        """Puts rings to sleep that have had no work for a while: for an engine that is never idle."""
        if len(self._hot) <= _FEW or now < self._cool_due_ns:
            return
        self._cool_due_ns = now + _COOL_EVERY_NS
        idle = [q for q in self._hot if now - q.ran_ns > _COOL_AFTER_NS and not q.turbo and not q.pending()]
        if idle:
            kept = set(map(id, idle))
            self._hot = [queue for queue in self._hot if id(queue) not in kept]
            self._put_to_sleep(idle)

    def _spin_for_work(self) -> bool:
        """Looks at the hot rings for a bounded time; True as soon as one has work."""
        hot = self._hot
        if not hot or self._blocked:
            return False
        limit = TURBO_SPIN_NS if any(queue.turbo for queue in hot) else self._spin.limit_ns()
        if not limit:
            return False
        start = time.monotonic_ns()
        end, look = start + limit, start + _POLL_EVERY_NS
        while (now := time.monotonic_ns()) < end:
            for queue in hot:
                if queue.pending():
                    self._spin.hit()
                    return True
            if now >= look:
                self._poll(0)
                hot, look = self._hot, now + _POLL_EVERY_NS
        self._spin.miss()
        return False

    def _sleep(self) -> None:
        """Puts every ring to sleep, looks once more, then waits for a doorbell, an order or a deadline."""
        cooled, self._hot = self._hot, []
        self._put_to_sleep(cooled)
        if self._hot:
            return
        self.counters.write()
        self._poll(self._time_to_deadline())
        if self._blocked:
            self._abort_overdue()

    def _put_to_sleep(self, queues: list[EngineQueue]) -> None:
        for queue in queues:
            queue.set_asleep(True)
        # a driver stores its tail and then looks at `asleep`; we store `asleep` and then look at its
        # tail: with a fence on both sides at least one of us sees the other
        linux.memory_fence()
        for queue in queues:
            if queue.pending() and not queue.closed:
                self._heat(queue)

    def _time_to_deadline(self) -> float:
        if not self._blocked:
            return -1.0
        deadlines = [queue.give_up_ns for queue in self._blocked if queue.give_up_ns]
        if not deadlines:
            return -1.0
        return max(0.0, (min(deadlines) - time.monotonic_ns() + self.counters.busy_ns) / 1e9)

    # ------------------------------------------------------------ for the runner and its programs

    def look_for_doorbells(self) -> None:
        """Also rings of clients that believe the engine asleep, while a submission runs."""
        now = time.monotonic_ns()
        self.counters.tick(now)
        self._poll(0)
        self._cool(now)

    def decoding(self, share: Share) -> int:
        """Queues of a session whose next command buffer is half decoded."""
        contexts = [context for context in self._contexts.values() if context.share is share]
        return sum(queue.decoding is not None for c in contexts for queue in c.queues.values())

    def hot(self, level: int) -> list[EngineQueue]:
        """The queues of a level that may have work."""
        return [queue for queue in self._hot if queue.level == level and queue.pending()]

    def better_claim(self, queue: EngineQueue) -> EngineQueue | None:
        """Who shall run instead of this queue, if anybody."""
        best = self.scheduler.pick(self._hot)  # also if there is no other: its clock goes on
        return best if best is not queue else None

    # ------------------------------------------------------------ queues that wait

    def block(self, queue: EngineQueue, give_up_ns: int | None) -> None:
        """Sets a queue aside until something is signalled; the first deadline of a wait stays.

        Time in which the device was busy does not count: what would signal may have waited for its turn.
        """
        self._hot.remove(queue)
        self._blocked.append(queue)
        if give_up_ns is not None:
            queue.give_up_ns = queue.give_up_ns or give_up_ns - self.counters.busy_ns

    def retry_blocked(self) -> None:
        """Something was signalled: lets every waiting queue look again."""
        for queue in self._blocked:
            if queue not in self._hot:
                self._heat(queue)
        self._blocked.clear()

    def _abort_overdue(self) -> None:
        """The watchdog of waits: a submission that waits for too long is aborted, its queue is lost."""
        free = time.monotonic_ns() - self.counters.busy_ns
        for queue in [queue for queue in self._blocked if 0 < queue.give_up_ns <= free]:
            self._blocked.remove(queue)
            info = ErrorInfo(
                result=ZeResult.ERROR_DEVICE_LOST,
                object="command queue",
                found=f"a submission waited for {self._setup.tdr_ms} ms without progress",
                expected="the event that it waits for",
                hint="signal the event, or create a new queue after finding out why nobody does",
            )
            self._end_waiting(queue, info)

    def _give_up_unheard(self) -> None:
        """Queues whose doorbell was lost because a user asked for that: as if they had waited too long."""
        for queue, info in self.faults.is_cancelled():
            if queue in self._hot:
                continue
            if queue in self._blocked:
                self._blocked.remove(queue)
            self._end_waiting(queue, info)
        self.faults.tidy()

    def _end_waiting(self, queue: EngineQueue, info: ErrorInfo) -> None:
        self._runner.end(queue, self._next_of(queue), info)
        if not queue.closed:  # by an order that was read on the way
            self._heat(queue)

    def _next_of(self, queue: EngineQueue) -> Submission | None:
        try:
            submission = queue.next()
            if submission.fence:
                queue.fence(submission)
        except Refused:
            return None  # the memory of the fence was freed meanwhile: nobody waits for it
        return submission

    # ------------------------------------------------------------ orders

    def send(self, report: link.Report) -> None:
        """Tells the supervisor something; if it is gone this engine ends."""
        try:
            self._channel.send(0, encode(report))
        except ConnectionError:
            self.alive = False

    def _image_loaded(self, report: link.ImageLoaded) -> None:
        """Called in the loader's thread."""
        self.send(report)
        os.eventfd_write(self._kick, 1)

    def read_orders(self) -> None:
        """Does what the supervisor has sent so far."""
        while self.alive and self._channel.wait_readable(0):
            packet = self._channel.receive()
            if packet is None:
                self.alive = False
                return
            with packet:
                self._handle_command(packet)

    def catch_up(self) -> None:
        """Does all that the supervisor wants by now, also what waits there because the socket was full.

        A client may use what the supervisor has given it, whether or not the order has come here yet.
        """
        waiting = True
        while waiting and self.alive:
            # asked before reading: what waited then may have been sent since
            waiting = bool(self._liveness[link.MESSAGES_WAITING])
            self.read_orders()
            if waiting:
                self._channel.wait_readable(_ORDERS_S)

    def _handle_command(self, packet: Packet) -> None:
        order = link.command_decoder.decode(packet.body)
        if failpoints.active is not None and type(order) in _STEPS:
            failpoints.hit(_STEPS[type(order)])
        match order:
            case link.Resume():
                self._resume()
            case link.ContextAdd():
                self._add_context(order, packet.take_fds(1)[0])
            case link.ContextDrop():
                self._drop_context(self._contexts.pop(order.context))
            case link.SegmentAdd():
                mapping = Mapping(packet.take_fds(1)[0], order.size)
                self._contexts[order.context].mappings[order.segment] = mapping
            case link.SegmentDrop():
                self._contexts[order.context].mappings.pop(order.segment, None)
            case link.MemoryAdd():
                context = self._contexts[order.context]
                context.add_memory(order.memory, order.segment, order.offset, order.size)
            case link.MemoryDrop():
                self._contexts[order.context].drop_memory(order.memory)
            case link.QueueAdd():
                self._add_queue(order)
            case link.QueueWorkload():
                self._contexts[order.context].queues[order.queue].set_background(order.background)
            case link.QueueDrop():
                queue = self._contexts[order.context].queues.pop(order.queue)
                self._drop_queue(queue)
                report = link.QueueDropped(context=order.context, queue=order.queue)
                self._runner.tell_when_over(queue, report)
            case link.QueueLose():
                self._contexts[order.context].queues[order.queue].lose(order.info)
                self.retry_blocked()
            case link.Abort():
                self._runner.abort(order)
            case link.Ping():
                self._answer_ping(order.number)
            case link.ImageLoad():
                self._images.load(order, packet.take_fds(packet.fd_count))
            case link.ImageUnload():
                self._images.unload(order.image)
            case link.GraphAdd():
                self._contexts[order.context].add_graph(order.graph, self._images.image(order.image))
            case link.GraphDrop():
                self._contexts[order.context].drop_graph(order.graph)
            case link.InjectionAdd():
                self.faults.add(order, packet.take_fds(1)[0])
            case link.InjectionDrop():
                self.faults.drop(order)
            case link.Setup():
                raise RuntimeError("the supervisor sent a second Setup")

    def _resume(self) -> None:
        """Everything that exists is known: queues go on, with what a dead engine has staged for them."""
        for queue in self._queues():
            if not queue.closed:  # by an order that was read on the way
                queue.resume()
        self.staging.recover(self._queues())
        self._resumed = True

    def _queues(self) -> list[EngineQueue]:
        return [queue for context in self._contexts.values() for queue in context.queues.values()]

    def _answer_ping(self, number: int) -> None:
        if failpoints.active is not None:
            self._give_up_unheard()
        # the others first: who sees the number relies on it
        self._liveness[link.LIVENESS_OTHER_THREADS_NS] = time.process_time_ns() - time.thread_time_ns()
        self._liveness[link.LIVENESS_PING] = number

    def _add_context(self, order: link.ContextAdd, doorbell: int) -> None:
        share = self._shares.setdefault(order.session or -order.context, Share())
        context = EngineContext(order.context, doorbell, self.catch_up, share, self.staging)
        context.session = order.session
        self._contexts[order.context] = context
        self._doorbells[doorbell] = context
        # by edge: every ring is reported once, and nobody has to empty the counter
        self._poller.register(doorbell, select.EPOLLIN | select.EPOLLET)

    def _add_queue(self, order: link.QueueAdd) -> None:
        context = self._contexts[order.context]
        queue = EngineQueue(context, order, context.memory(order.ring), self._states)
        context.queues[order.queue] = queue
        if self._resumed:
            queue.resume()
        queue.set_asleep(True)
        linux.memory_fence()
        if queue.pending():
            self._heat(queue)

    def _drop_queue(self, queue: EngineQueue) -> None:
        queue.closed = True
        self.overlap.settle(queue)
        if queue in self._hot:
            self._hot.remove(queue)
        if queue in self._blocked:
            self._blocked.remove(queue)

    def _drop_context(self, context: EngineContext) -> None:
        self._poller.unregister(context.doorbell)
        del self._doorbells[context.doorbell]
        for queue in context.queues.values():
            self._drop_queue(queue)
        context.close()
        if all(other.share is not context.share for other in self._contexts.values()):
            self._shares = {key: share for key, share in self._shares.items() if share is not context.share}
        self._runner.tell_when_over(context, link.ContextDropped(context=context.number))
