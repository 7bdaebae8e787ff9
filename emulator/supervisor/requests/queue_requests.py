"""The requests of a session on command queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.supervisor.requests.memory_requests import MemoryRequests
from softnpu.emulator.supervisor.requests.session_state import Call, OwnedAllocation, SessionState
from softnpu.emulator.supervisor.state.objects import PRIORITIES, Queue
from softnpu.emulator.supervisor.undoing import undoing


class QueueRequests:
    """Queues: a ring in the context's memory, and a record that outlives the engine."""

    def __init__(self, state: SessionState, memory: MemoryRequests) -> None:
        self._state = state
        self._memory = memory

    def create(self, call: Call, request: msg.QueueCreate) -> None:
        context = self._state.contexts.get(request.context)
        bans = self._state.function_of(context).bans
        bans.check(context.ban_key, "command queue")
        delay_s = bans.delay_s(context.ban_key)
        if delay_s:
            self._create_later(delay_s, call.number, request)
        else:
            self._create(call.number, request)

    def _create_later(self, delay_s: float, number: int, request: msg.QueueCreate) -> None:
        """Create it after a delay. All that wait may be due at once, so they are few."""
        delayed = self._state.user.delayed
        delayed.check()
        waits = delayed.hold()

        def create() -> None:
            waits.close()
            self._state.answering(number, self._create, number, request)

        self._state.reactor.after(delay_s, create)

    def _create(self, number: int, request: msg.QueueCreate) -> None:
        context = self._state.contexts.get(request.context)
        function = self._state.function_of(context)
        slots, most = request.slots, self._state.services.limits.queue_slots
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
        with undoing() as undo:
            allocation, fresh = context.memory.allocate(size, 0, "control")
            ring = self._memory.keep(context, allocation, fresh)
            queue = Queue(context, allocation, slots, PRIORITIES[request.priority], request.turbo, state=-1)
            undo.callback(self._undo, queue)
            # where an older ring lay its header would look like submissions
            os.pwrite(allocation.segment.fd, bytes(records.RING_HEADER), allocation.offset)
            queue.state = function.states.take(context.device)
            queue.handle = self._state.queues.add(queue)
            context.usage.begin(context.device, queue.state, function.states)
            context.queues[queue.handle] = queue
            allocation.is_ring = True
            function.announce.queue(queue)
            answer = msg.QueueCreated(queue=queue.handle, ring=self._memory.answer(context, ring, fresh))
            self._state.post(number, answer, [allocation.segment.fd] if fresh else ())

    def _undo(self, queue: Queue) -> None:
        if queue.state >= 0:
            self._drop(queue, lambda: None)
        else:
            self._memory.release(OwnedAllocation(queue.context, queue.ring))

    def destroy(self, call: Call, request: msg.QueueDestroy) -> None:
        queue = self._state.queues.get(request.queue)
        self._drop(queue, partial(self._state.answer_ok, call))

    def _drop(self, queue: Queue, on_dropped: Callable[[], None]) -> None:
        context = queue.context
        self._state.queues.discard(queue.handle)
        context.queues.pop(queue.handle, None)
        queue.ring.is_ring = False

        def dropped() -> None:
            # until now the engine may have written to the ring and to fences
            if queue.ring.handle in context.allocations:
                self._memory.release(OwnedAllocation(context, queue.ring))
            on_dropped()

        self._state.function_of(context).drop_queue(queue, self._state.reactor.guarded(dropped))

    def set_workload(self, call: Call, request: msg.QueueWorkload) -> None:
        """Run later submissions in the background, or as before."""
        queue = self._state.queues.get(request.queue)
        queue.background = request.background
        self._state.function_of(queue.context).bans.announce_workload(queue)
        self._state.answer_ok(call)
