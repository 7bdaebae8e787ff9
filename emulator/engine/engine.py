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

from softnpu.emulator import link
from softnpu.emulator.engine import program as programs
from softnpu.emulator.engine.context import EngineContext, Mapping
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.images import ImageLoader
from softnpu.emulator.engine.queue import EngineQueue, cancelled_fault, condemned_fault
from softnpu.emulator.engine.scheduler import pick
from softnpu.emulator.engine.steps import BLOCKED, LOADING
from softnpu.emulator.interface import commands, linux
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.messages import encode
from softnpu.emulator.interface.result import Fault, Refused, ZeResult, refuse
from softnpu.emulator.interface.shared import Signal
from softnpu.emulator.interface.spin import TURBO_SPIN_NS, SpinBudget
from softnpu.emulator.platforms import check_platform

log = logging.getLogger(__name__)

_POLL_EVERY_NS = 20_000
_ORDERS_EVERY_NS = 2_000_000
_LOOK_EVERY = 63  # mask of step numbers: reading the clock after each of many small copies would show


class Engine:
    """The engine of one device. Single-threaded, but for the thread that loads images."""

    def __init__(self, channel: Channel, setup: link.Setup, states_fd: int, page_fd: int) -> None:
        self._channel = channel
        self._setup = setup
        states = linux.map_shared(states_fd, link.QUEUE_STATE_SIZE * link.QUEUE_STATES)
        self._states = memoryview(states).cast("Q")
        self._counters = Counters(page_fd, setup.devices, setup.device)
        self._tdr_ns = setup.tdr_ms * 1_000_000
        self._spin = SpinBudget(setup.spin_us * 1000)
        self._contexts: dict[int, EngineContext] = {}
        self._doorbells: dict[int, EngineContext] = {}
        self._hot: list[EngineQueue] = []
        self._blocked: list[EngineQueue] = []
        self._images = ImageLoader(self._image_loaded)
        self._kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.epoll()
        self._poller.register(channel.fileno(), select.EPOLLIN)
        self._poller.register(self._kick, select.EPOLLIN)
        self._alive = True
        self._poll_due_ns = 0
        self._orders_due_ns = 0
        self._spent_ns = 0  # of the context that ran last: where the others' count begins
        self._running: EngineQueue | None = None
        self._running_fence: Signal | None = None
        self.ns_per_tick = check_platform(setup.platform).timer_ns_per_tick

    def run(self) -> None:
        """Executes until the supervisor closes the channel."""
        self._send(link.Ready())
        self._counters.write()
        while self._alive:
            queue = pick(self._hot)
            if queue is not None:
                self._run_submission(queue)
                self._look_outside()
            elif not self._spin_for_work():
                self._sleep()

    # ------------------------------------------------------------ waiting for work

    def _look_outside(self) -> None:
        """Between submissions: doorbells of other clients and orders, but not at every turn."""
        now = time.monotonic_ns()
        self._counters.tick(now)
        if now >= self._poll_due_ns:
            self._poll(0)
            if self._blocked:
                self._abort_overdue()

    def _poll(self, timeout_s: float) -> None:
        for fd, _ in self._poller.poll(timeout_s):
            context = self._doorbells.get(fd)
            if context is not None:
                self._answer_doorbell(context)
            elif fd == self._kick:
                os.eventfd_read(self._kick)
                self.retry_blocked()
            elif fd == self._channel.fileno():
                self._read_orders()
        self._poll_due_ns = time.monotonic_ns() + _POLL_EVERY_NS

    def _answer_doorbell(self, context: EngineContext) -> None:
        try:
            os.eventfd_read(context.doorbell)
        except BlockingIOError:
            return  # the client itself has emptied it
        for queue in context.queues.values():
            if queue.pending() and queue.blocked is None and queue not in self._hot:
                self._heat(queue)
        self.retry_blocked()

    def _heat(self, queue: EngineQueue) -> None:
        # who comes back from idleness has no claim on the time that others have had meanwhile
        queue.context.spent_ns = max(queue.context.spent_ns, self._spent_ns)
        queue.set_asleep(False)
        self._hot.append(queue)

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
        for queue in cooled:
            queue.set_asleep(True)
        # a driver stores its tail and then looks at `asleep`; we store `asleep` and then look at its
        # tail: with a fence on both sides at least one of us sees the other
        linux.memory_fence()
        for queue in cooled:
            if queue.pending() and not queue.closed:
                self._heat(queue)
        if self._hot:
            return
        self._counters.write()
        self._poll(self._time_to_deadline())
        if self._blocked:
            self._abort_overdue()

    def _time_to_deadline(self) -> float:
        if not self._blocked:
            return -1.0
        deadlines = [queue.give_up_ns for queue in self._blocked if queue.give_up_ns]
        return max(0.0, (min(deadlines) - time.monotonic_ns()) / 1e9) if deadlines else -1.0

    # ------------------------------------------------------------ running

    def _run_submission(self, queue: EngineQueue) -> None:
        start = queue.ran_ns = time.monotonic_ns()
        context = queue.context
        self._spent_ns = max(self._spent_ns, context.spent_ns)
        fence: Signal | None = None
        fault: Fault | None = None
        try:
            submission = queue.next()
        except Refused as error:
            self._report(queue, error.fault)
            queue.blocked = None
            queue.give_up_ns = 0
            queue.abandon(error.fault)
            return
        try:
            if submission.fence:
                fence = queue.fence(submission)
            if queue.lost is not None:
                fault = queue.lost
            elif queue.condemned == submission.sequence:
                fault = condemned_fault()
            elif fence is not None and fence.cancelled:
                fault = cancelled_fault()
            else:
                queue.begin(start)
                if queue.blocked is None:
                    queue.blocked = self._program(
                        queue, submission.buffer, submission.offset, submission.size
                    )
                    queue.step = 0
                self._running, self._running_fence = queue, fence
                try:
                    waits = self._run_steps(queue, queue.blocked)
                finally:
                    self._running = self._running_fence = None  # they would keep the client's memory mapped
                if waits is not None:
                    self._block(queue, None if waits is LOADING else time.monotonic_ns() + self._tdr_ns)
                    return
                if fence is not None and fence.cancelled:
                    fault = cancelled_fault()
                self._counters.commands += queue.blocked.commands
                self._counters.inferences += queue.blocked.inferences
        except Refused as error:
            fault = error.fault
        except RuntimeError as error:
            fault = _runtime_fault(error)
        self._end_submission(queue, fence, fault)
        spent = time.monotonic_ns() - start
        self._counters.busy_ns += spent
        context.spent_ns += spent

    def _end_submission(self, queue: EngineQueue, fence: Signal | None, fault: Fault | None) -> None:
        queue.blocked = None
        queue.give_up_ns = 0
        self._counters.submissions += 1
        if fault is not None:
            self._report(queue, fault)
        if not queue.closed:
            queue.finish(fence, fault)

    def _report(self, queue: EngineQueue, fault: Fault) -> None:
        """Counts a failure, and tells the supervisor of it unless the queue was lost before."""
        self._counters.faults += 1
        if queue.lost is None:
            self._send(
                link.SubmissionFailed(
                    context=queue.context.number,
                    queue=queue.handle,
                    sequence=queue.completed + 1,
                    fault=fault.shortened(),
                )
            )

    def _program(self, queue: EngineQueue, buffer: int, offset: int, size: int) -> programs.Program:
        context = queue.context
        memory = context.memory(buffer)
        if size > commands.MAX_BUFFER or offset > memory.size or size > memory.size - offset:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"command buffer in memory {buffer:#018x}",
                f"bytes {offset} to {offset + size}",
                f"at most {commands.MAX_BUFFER} bytes inside its {memory.size} bytes",
            )
        start = memory.offset + offset
        # a private copy: the client may change the original while it is checked
        data = memory.mapping.shared.buffer[start : start + size]
        program = context.program(buffer, offset, data)
        if program is None:
            program = programs.decode(data, context, self)
            context.remember(buffer, offset, program)
        return program

    def _run_steps(self, queue: EngineQueue, program: programs.Program) -> object:
        """Runs the program from the queue's step on; what it waits for if it cannot go on, else None."""
        steps = program.steps
        for index in range(queue.step, len(steps)):
            waits = steps[index]()
            if waits is BLOCKED or waits is LOADING:
                if index != queue.step:
                    queue.step, queue.give_up_ns = index, 0  # it got further: the watchdog counts anew
                return waits
            if (program.inferences or not index & _LOOK_EVERY) and self._look_for_end():
                return None
        return None

    def _look_for_end(self) -> bool:
        """`given_up`, with the orders read only now and then."""
        now = time.monotonic_ns()
        if now >= self._orders_due_ns:
            return self.given_up()
        return self._running is None or self._running.closed

    def given_up(self) -> bool:
        """Reads the orders while a submission runs; whether nobody wants its end any more.

        The memory of a dead client must not wait until a long submission of it has come to its end.
        """
        self._orders_due_ns = time.monotonic_ns() + _ORDERS_EVERY_NS
        self._read_orders()
        fence = self._running_fence
        cancelled = fence is not None and fence.cancelled
        return cancelled or not self._alive or self._running is None or self._running.closed

    def count_staged(self, size: int) -> None:
        """Counts bytes that were copied because a tensor could not be used in place."""
        self._counters.staged += size

    # ------------------------------------------------------------ queues that wait

    def _block(self, queue: EngineQueue, give_up_ns: int | None) -> None:
        """Sets a queue aside until something is signalled; the first deadline of a wait stays."""
        if queue.closed:
            return  # it was destroyed by an order that was read on the way
        queue.set_aside()
        self._hot.remove(queue)
        self._blocked.append(queue)
        if give_up_ns is not None:
            queue.give_up_ns = queue.give_up_ns or give_up_ns

    def retry_blocked(self) -> None:
        """Something was signalled: lets every waiting queue look again."""
        for queue in self._blocked:
            if queue not in self._hot:
                self._heat(queue)
        self._blocked.clear()

    def _abort_overdue(self) -> None:
        """The watchdog of waits: a submission that waits for too long is aborted, its queue is lost."""
        now = time.monotonic_ns()
        for queue in [queue for queue in self._blocked if 0 < queue.give_up_ns <= now]:
            self._blocked.remove(queue)
            fault = Fault(
                result=ZeResult.ERROR_DEVICE_LOST,
                object="command queue",
                found=f"a submission waited for {self._setup.tdr_ms} ms without progress",
                expected="the event that it waits for",
                hint="signal the event, or create a new queue after finding out why nobody does",
            )
            self._end_submission(queue, self._fence_of_next(queue), fault)
            self._heat(queue)

    def _fence_of_next(self, queue: EngineQueue) -> Signal | None:
        try:
            submission = queue.next()
            return queue.fence(submission) if submission.fence else None
        except Refused:
            return None  # its memory was freed meanwhile: nobody waits for it

    # ------------------------------------------------------------ orders

    def _send(self, report: link.Report) -> None:
        try:
            self._channel.send(0, encode(report))
        except ConnectionError:
            self._alive = False

    def _image_loaded(self, report: link.ImageLoaded) -> None:
        """Called in the loader's thread."""
        self._send(report)
        os.eventfd_write(self._kick, 1)

    def _read_orders(self) -> None:
        while self._alive and self._channel.wait_readable(0):
            packet = self._channel.receive()
            if packet is None:
                self._alive = False
                return
            with packet:
                self._obey(packet)

    def _obey(self, packet: Packet) -> None:
        order = link.order_decoder.decode(packet.body)
        match order:
            case link.ContextAdd():
                (doorbell,) = packet.take_fds(1)
                context = EngineContext(order.context, doorbell, self._read_orders)
                self._contexts[order.context] = context
                self._doorbells[doorbell] = context
                self._poller.register(doorbell, select.EPOLLIN)
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
                self._contexts[order.context].queues[order.queue].background = order.background
            case link.QueueDrop():
                self._drop_queue(self._contexts[order.context].queues.pop(order.queue))
                self._send(link.QueueDropped(context=order.context, queue=order.queue))
            case link.ImageLoad():
                self._images.load(order, packet.take_fds(packet.fd_count))
            case link.ImageUnload():
                self._images.unload(order.image)
            case link.GraphAdd():
                context = self._contexts[order.context]
                context.add_graph(order.graph, self._images.image(order.image))
            case link.GraphDrop():
                self._contexts[order.context].drop_graph(order.graph)
            case link.Setup():
                raise RuntimeError("the supervisor sent a second Setup")

    def _add_queue(self, order: link.QueueAdd) -> None:
        context = self._contexts[order.context]
        queue = EngineQueue(context, order, context.memory(order.ring), self._states)
        context.queues[order.queue] = queue
        queue.set_asleep(True)
        linux.memory_fence()
        if queue.pending():
            self._heat(queue)

    def _drop_queue(self, queue: EngineQueue) -> None:
        queue.closed = True
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
        self._send(link.ContextDropped(context=context.number))


def _runtime_fault(error: RuntimeError) -> Fault:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Fault(
        result=ZeResult.ERROR_UNKNOWN,
        object="inference",
        found=lines[-1] if lines else type(error).__name__,
        expected="an inference that ends",
    )
