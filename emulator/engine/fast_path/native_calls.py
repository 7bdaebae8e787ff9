"""The fast path: calls of the C++ part, which runs prepared submissions and returns for everything else.

Python runs a submission first. After two runs it is prepared (`prepared.py`), and from then on the engine's
loop hands the rings to `softnpu_fast_path` unless something is pending that only Python can handle. The
interpreter lock is released there. The rules and their order are the same: the log that outlives the engine,
the end of a submission, the scheduler's accounts, the counters.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence

from softnpu.emulator.common import native_files
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.engine import native_library
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.fast_path.native_records import SIZES, CallRecord, CountersRecord, QueueRecord
from softnpu.emulator.engine.fast_path.prepared import PreparedSubmissions, call
from softnpu.emulator.engine.queues.queue import EngineQueue, Place, Submission
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.interface.environment import native_turns
from softnpu.emulator.openvino.c_models import openvino
from softnpu.emulator.openvino.copies import CopyMaker

log = logging.getLogger(__name__)

_FEW = 4  # submissions of a worthwhile call
_LONGEST_PAUSE = 64
LARGE = 32
"""A call prepares every polled queue, so there is none while a session has more than this."""


def library() -> ctypes.CDLL | None:
    """Return the C++ part; None if it is disabled, not built, or of another build."""
    loaded = native_library.library() if native_turns() else None
    if loaded is None:
        return None
    sizes = (ctypes.c_uint64 * len(SIZES))()
    loaded.softnpu_fast_path_sizes(sizes)
    if tuple(sizes) != SIZES:
        log.warning("%s has other records; install softnpu again", native_files.engine())
        return None
    return loaded


class FastPath:
    """The C++ part of one engine. `ready`: the next submissions may be prepared ones."""

    def __init__(
        self,
        library: ctypes.CDLL,
        queues: QueueTable,
        scheduler: Scheduler,
        counters: Counters,
        injections: memoryview,
        epoll: int,
        spin: SpinBudget,
        copies: CopyMaker,
        ns_per_tick: float,
    ) -> None:
        self.ready = False
        self._run = library.softnpu_fast_path
        self._queues = queues
        self._scheduler = scheduler
        self._counters = counters
        self._copies = copies
        self._missed = self._pause = 0
        self._injections = injections
        self._kept = ctypes.c_char.from_buffer(injections)
        interface = openvino()
        self._record = CallRecord(
            counters=counters.record(CountersRecord),
            infer=None if interface is None else interface.infer,
            call=ctypes.cast(call, ctypes.c_void_p).value,
            injections=ctypes.addressof(self._kept),
            ns_per_tick=ns_per_tick,
            spin_ns=spin.max_ns,
            epoll=epoll,
        )

    def learn(self, queue: EngineQueue, submission: Submission, program: Program) -> None:
        """Record that this submission has succeeded in Python."""
        prepared = self._prepared(queue)
        if submission.content not in prepared:
            prepared.learn(submission, program)
        elif self._pause:
            self._pause -= 1
        else:
            self.ready = True

    def call(self) -> Sequence[int] | None:
        """Run prepared submissions; return the ready descriptors.

        None if the next submission has to run in Python.
        """
        table = self._enter()
        is_brief = self._run(ctypes.byref(self._record))  # needs only a short check before the next call
        self._leave(table)
        if not is_brief:
            self._back_off()
            return None
        return list(self._record.events)[: self._record.event_count]

    def _enter(self) -> list[EngineQueue]:
        # those that sleep too: C++ hears doorbells that are rung in vain, while a load may keep Python busy
        record, table = self._record, [*self._queues.awake, *self._queues.sleepers()]
        here: dict[int, int] = {}
        for queue in table:
            here[queue.context.number] = here.get(queue.context.number, 0) + 1
        records = [ctypes.pointer(self._filled(queue, here[queue.context.number])) for queue in table]
        record.queues, record.count = (ctypes.POINTER(QueueRecord) * len(table))(*records), len(table)
        record.injections_seen = self._injections[0]
        record.min_spent_ns[:] = self._scheduler.min_spent_ns
        record.counted_due_ns = self._counters.due_ns
        return table

    def _prepared(self, queue: EngineQueue) -> PreparedSubmissions:
        prepared = queue.prepared
        if not isinstance(prepared, PreparedSubmissions):
            prepared = queue.prepared = PreparedSubmissions(queue, self._copies)
        return prepared

    def _filled(self, queue: EngineQueue, here: int) -> QueueRecord:
        """Fill the record of a queue; `here`: number of its context's queues in the table."""
        prepared = self._prepared(queue)
        prepared.check()
        record = prepared.record
        record.completed, record.ran_ns, record.step = queue.completed, queue.ran_ns, 0
        record.poisoned = queue.poisoned if queue.poisoned_info is not None else 0
        record.logged_waiting = queue.logged_waiting % 2**64  # -1: none
        record.level, record.awake = queue.level, queue.place is Place.AWAKE
        record.spent = queue.share.address + 8 * queue.level
        record.whole = here == len(self._queues.of(queue.context.number))
        return record

    def _leave(self, table: list[EngineQueue]) -> None:
        record = self._record
        record.queues = None  # a dropped queue must not stay mapped
        for queue in table:
            left = self._prepared(queue).record
            queue.completed, queue.ran_ns, queue.step = left.completed, left.ran_ns, left.step
            self._queues.adopt_waiting(queue, left.logged_waiting)
            self._queues.adopt(queue, awake=bool(left.awake))
        self._scheduler.adopt(record.min_spent_ns[:], {queue.level for queue in table})
        self._counters.adopt(record.counted_due_ns)

    def _back_off(self) -> None:
        """Pause while few submissions are prepared: a call costs 20 us."""
        self.ready = False
        if self._record.done >= _FEW:
            self._missed = self._pause = 0
        else:
            self._missed = min(_LONGEST_PAUSE, max(1, 2 * self._missed))
            self._pause = self._missed
