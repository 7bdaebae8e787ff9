"""The engine's end of a queue on memory that records each access, in the words of the model."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import Any, cast

from softnpu.emulator.common import linux
from softnpu.emulator.engine.queues.context import HandleUsers
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import SLOT
from softnpu.emulator.interface.shared import EventRecord, SharedMapping
from softnpu.emulator.links import engine as link
from tests.model.operations import Memory, Steps

FENCE_AT, EVENT_AT = 2048, 2112
TICKET = 7
MEMORY = 1
"""The handle of the only memory, which holds the ring, a fence and an event."""
_SLOTS = 2
_SLOT = records.RING_HEADER

_SHARED = {
    records.RING_COMPLETED: "A.done",
    records.RING_FAILED: "A.failed",
    _SLOT + records.SLOT_RESULT: "A.result0",
    FENCE_AT + records.FENCE.offset("signalled"): "fence.signalled",
    FENCE_AT + records.FENCE_RESULT: "fence.result",
    FENCE_AT + records.FENCE_ARMED: "fence.armed",
    FENCE_AT + records.FENCE_CANCEL: "fence.cancel",
    EVENT_AT: "event",
    EVENT_AT + records.EVENT_CHANGES: "event",  # read alone, stored together with the state
}
_LOGGED = {
    link.STATE_COMPLETED: "A.completed",
    link.STATE_REACHED: "A.reached",
    link.STATE_INTENT_STEP: "A.intent",
    link.STATE_INTENT_VALUE: "A.value",
    link.STATE_INTENT_EVENT: "A.intent event",
    link.STATE_INJECTED: "A.injected",
    link.STATE_INJECTED_RESULT: "A.injected result",
    link.STATE_INJECTION_HITS: "A.injection hits",
}


class Words:
    """A memoryview that reports reads (`reads x`) and writes (`x`) of words that have a name."""

    def __init__(self, words: Any, names: dict[int, str], log: list[str], reads: bool = True) -> None:
        self._words, self._names, self._log, self._reads = words, names, log, reads

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Words(self._words[at], self._names, self._log, self._reads)
        if self._reads and at in self._names:
            self._log.append(f"reads {self._names[at]}")
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        if at in self._names:
            self._log.append(self._names[at])
        self._words[at] = value


class RecordedQueue:
    """A queue A with one submission, which signals a fence; `log` has the engine's accesses, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        fd = linux.memfd("recorded", mmap.PAGESIZE)
        real = SharedMapping(fd, mmap.PAGESIZE)
        os.close(fd)
        self.real = real
        # a name belongs to one width: the other width would access its neighbour too
        short = {at for at, name in _SHARED.items() if "result" in name or at > EVENT_AT}
        words = {at // 4: name for at, name in _SHARED.items() if at in short}
        longs = {at // 8: name for at, name in _SHARED.items() if at not in short}
        self.shared = cast(
            SharedMapping,
            SimpleNamespace(
                buffer=real.buffer,
                words=Words(real.words, words, self.log),
                longs=Words(real.longs, longs, self.log),
                address=real.address,
            ),
        )
        self.state_words = memoryview(bytearray(link.QUEUE_STATE_SIZE)).cast("Q")
        SLOT.pack_into(real.buffer, _SLOT, 1, MEMORY, 1024, 64, 0, MEMORY, FENCE_AT, TICKET, 0, 0)
        real.longs[records.RING_TAIL >> 3] = 1
        real.longs[(FENCE_AT + records.FENCE_ARMED) >> 3] = TICKET

    def engine(self) -> EngineQueue:
        """Return the queue in an engine: the first one, or the successor of a dead one."""
        memory = SimpleNamespace(mapping=SimpleNamespace(shared=self.shared), offset=0, size=mmap.PAGESIZE)
        space = SimpleNamespace(memory=lambda _: memory, own_memory=lambda _: memory)
        context = SimpleNamespace(share=Share(), number=1, session=0, space=space, users=HandleUsers())
        message = link.QueueAdd(
            context=1, queue=1, ring=MEMORY, slots=_SLOTS, priority=1, turbo=False, state=0
        )
        states = Words(self.state_words, _LOGGED, self.log, reads=False)
        queue = EngineQueue(cast(Any, context), message, cast(Any, memory), cast(memoryview, states))
        queue.resume()
        return queue

    @property
    def event(self) -> EventRecord:
        """Return the event."""
        return EventRecord(self.shared, EVENT_AT)


class _Log(dict[str, Any]):
    """The memory of a model, which reports writes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.log: list[str] = []

    def __setitem__(self, word: str, value: Any) -> None:
        self.log.append(word)
        super().__setitem__(word, value)


def accesses(steps: Steps, memory: Memory) -> list[str]:
    """Return the accesses of these steps of the model, alone and in order, to words of the real engine."""
    recorded = _Log(memory)
    try:
        operation = next(steps)
        while True:
            if operation.label.startswith("reads ") and operation.label[6:] in _SHARED.values():
                recorded.log.append(operation.label)
            operation = steps.send(operation.run(recorded))
    except StopIteration:
        known = {*_SHARED.values(), *_LOGGED.values()}
        return [word for word in recorded.log if word.removeprefix("reads ") in known]
