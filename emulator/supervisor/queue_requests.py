"""The requests of a session on command queues."""

from __future__ import annotations

import os

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.memory_requests import MemoryRequests
from softnpu.emulator.supervisor.objects import PRIORITIES, Queue
from softnpu.emulator.supervisor.session_state import Owned, SessionState


class QueueRequests:
    """Queues: a ring in the context's memory, and a record that outlives the engine."""

    def __init__(self, state: SessionState, memory: MemoryRequests) -> None:
        self._state = state
        self._memory = memory

    def create(self, number: int, request: msg.QueueCreate) -> None:
        context = self._state.contexts.get(request.context)
        context.device.penalties.check(context.owner, "command queue")
        delay_s = context.device.penalties.delay_s(context.owner)
        if delay_s:
            self._state.supervisor.reactor.after(delay_s, lambda: self._create_late(number, request))
            return
        self._create(number, request)

    def _create_late(self, number: int, request: msg.QueueCreate) -> None:
        """As `create`, when the process of this session has waited for its turn."""
        if not self._state.open:
            return
        try:
            self._create(number, request)
        except Refused as error:
            self._state.post(number, msg.Failed(info=error.info), ())

    def _create(self, number: int, request: msg.QueueCreate) -> None:
        context = self._state.contexts.get(request.context)
        slots = request.slots
        most = self._state.supervisor.limits.queue_slots
        if not records.MIN_SLOTS <= slots <= most or slots & (slots - 1):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "command queue",
                found=f"{slots} slots",
                expected=f"a power of two from {records.MIN_SLOTS} to {most}",
            )
        if request.priority not in PRIORITIES:
            raise refuse(
                ZeResult.ERROR_INVALID_ENUMERATION,
                "command queue",
                found=f"priority {request.priority!r}",
                expected=" or ".join(PRIORITIES),
            )
        self._state.queues.check_room()
        size = records.ring_size(slots)
        self._memory.check(context, size)
        allocation, fresh = context.memory.allocate(size, 0, "control")
        ring = self._memory.keep(context, allocation, fresh)
        # where an older ring lay its header would look like submissions
        os.pwrite(allocation.segment.fd, bytes(records.RING_HEADER), allocation.offset)
        try:
            state = context.device.states.take(context.device.info.index)
        except Refused:
            self._memory.release(ring, Owned(context, allocation))
            raise
        queue = Queue(context, allocation, slots, PRIORITIES[request.priority], request.turbo, state)
        queue.handle = self._state.queues.add(queue)
        context.queues[queue.handle] = queue
        context.device.announce_queue(queue)
        answer = msg.QueueCreated(queue=queue.handle, ring=self._memory.answer(context, ring, fresh))
        self._state.post(number, answer, [allocation.segment.fd] if fresh else ())

    def destroy(self, number: int, queue: Queue) -> None:
        context = queue.context
        del context.queues[queue.handle]

        def gone() -> None:
            # until now the engine may have written to the ring and to fences
            if queue.ring.handle in context.allocations:
                self._memory.release(queue.ring.handle, Owned(context, queue.ring))
            self._state.post(number, msg.Ok(), ())

        context.device.drop_queue(queue, gone)

    def set_workload(self, number: int, request: msg.QueueWorkload) -> None:
        """Later submissions run in the background, or as before."""
        queue = self._state.queues.get(request.queue)
        queue.background = request.background
        queue.context.device.penalties.announce_level(queue)
        self._state.post(number, msg.Ok(), ())
