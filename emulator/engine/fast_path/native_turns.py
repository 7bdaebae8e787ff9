"""Visits: calls of the C++ part, which runs known submissions and returns for everything else.

Python runs a submission first. After two runs it is prepared (`known`), and from then on the engine's loop
hands the rings to `softnpu_turns` unless something is pending that only Python can handle. The interpreter
lock is released there. The rules and their order are the same: the log that outlives the engine, the end of a
submission, the scheduler's accounts, the counters.
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
from softnpu.emulator.engine.fast_path.known import KnownSubmissions
from softnpu.emulator.engine.fast_path.native_records import SIZES, CountersRecord, QueueRecord, TurnsRecord
from softnpu.emulator.engine.queues.queue import EngineQueue, Submission
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.interface.environment import native_turns
from softnpu.emulator.openvino.twin_maker import TwinMaker
from softnpu.emulator.openvino.twins import openvino

log = logging.getLogger(__name__)

_FEW = 4  # submissions of a worthwhile visit
_LONGEST_PAUSE = 64
LARGE = 32
"""A visit prepares every polled queue, so there is none while a session has more than this."""


def library() -> ctypes.CDLL | None:
    """Return the C++ part; None if it is disabled, not built, or of another build."""
    loaded = native_library.library() if native_turns() else None
    if loaded is None:
        return None
    sizes = (ctypes.c_uint64 * len(SIZES))()
    loaded.softnpu_turns_sizes(sizes)
    if tuple(sizes) != SIZES:
        log.warning("%s has other records; install softnpu again", native_files.engine())
        return None
    return loaded


class NativeTurns:
    """The C++ part of one engine. `ready`: the next submissions may be known ones."""

    def __init__(
        self,
        library: ctypes.CDLL,
        queues: QueueTable,
        scheduler: Scheduler,
        counters: Counters,
        injections: memoryview,
        epoll: int,
        spin: SpinBudget,
        ns_per_tick: float,
    ) -> None:
        self.ready = False
        self._run = library.softnpu_turns
        self._queues = queues
        self._scheduler = scheduler
        self._counters = counters
        self._maker = TwinMaker()
        self._missed = self._pause = 0
        self._injections = injections
        self._kept = ctypes.c_char.from_buffer(injections)
        interface = openvino()
        self._record = TurnsRecord(
            counters=counters.record(CountersRecord),
            infer=None if interface is None else interface.infer,
            injections=ctypes.addressof(self._kept),
            ns_per_tick=ns_per_tick,
            spin_ns=spin.max_ns,
            epoll=epoll,
        )

    def learn(self, queue: EngineQueue, submission: Submission, program: Program) -> None:
        """Record that this submission has succeeded in Python."""
        known = self._known(queue)
        if submission.content not in known:
            known.learn(submission, program)
        elif self._pause:
            self._pause -= 1
        else:
            self.ready = True

    def visit(self) -> Sequence[int] | None:
        """Run known submissions; return the ready descriptors.

        None if the next submission has to run in Python.
        """
        table = self._enter()
        is_brief = self._run(ctypes.byref(self._record))  # needs only a short check before the next visit
        self._leave(table)
        if not is_brief:
            self._back_off()
            return None
        return list(self._record.events)[: self._record.event_count]

    def _enter(self) -> list[EngineQueue]:
        record, table = self._record, list(self._queues.awake)
        here: dict[int, int] = {}
        for queue in table:
            here[queue.context.number] = here.get(queue.context.number, 0) + 1
        records = [ctypes.pointer(self._filled(queue, here[queue.context.number])) for queue in table]
        record.queues, record.count = (ctypes.POINTER(QueueRecord) * len(table))(*records), len(table)
        record.injections_seen = self._injections[0]
        record.min_spent_ns[:] = self._scheduler.min_spent_ns
        record.counted_due_ns = self._counters.due_ns
        return table

    def _known(self, queue: EngineQueue) -> KnownSubmissions:
        known = queue.known
        if not isinstance(known, KnownSubmissions):
            known = queue.known = KnownSubmissions(queue, self._maker)
        return known

    def _filled(self, queue: EngineQueue, here: int) -> QueueRecord:
        """Fill the record of a queue; `here`: number of its context's queues in the table."""
        known = self._known(queue)
        known.check()
        record = known.record
        record.completed, record.ran_ns, record.step = queue.completed, queue.ran_ns, 0
        record.condemned = queue.condemned if queue.condemned_info is not None else 0
        record.noted_waiting = queue.noted_waiting % 2**64  # -1: none
        record.level, record.awake = queue.level, 1
        record.spent = queue.share.address + 8 * queue.level
        record.whole = here == len(self._queues.of(queue.context.number))
        return record

    def _leave(self, table: list[EngineQueue]) -> None:
        record = self._record
        record.queues = None  # a dropped queue must not stay mapped
        asleep: list[EngineQueue] = []
        for queue in table:
            left = self._known(queue).record
            queue.completed, queue.ran_ns, queue.step = left.completed, left.ran_ns, left.step
            self._queues.adopt_waiting(queue, left.noted_waiting)
            if not left.awake:
                asleep.append(queue)
        self._queues.adopt_asleep(asleep)
        self._scheduler.adopt(record.min_spent_ns[:], {queue.level for queue in table})
        self._counters.adopt(record.counted_due_ns)

    def _back_off(self) -> None:
        """Pause while few submissions are known: a visit costs 20 us."""
        self.ready = False
        if self._record.done >= _FEW:
            self._missed = self._pause = 0
        else:
            self._missed = min(_LONGEST_PAUSE, max(1, 2 * self._missed))
            self._pause = self._missed
