"""Injected faults in the engine: in submissions, at doorbells, while loading images.

Nothing of this runs without an injection: the engine checks for faults where it checks its fail-points.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import msgspec

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.commands.steps import BLOCKED, CANCELLED, Pause
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.interface.injections import FaultKind, Injection, Operation
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters

_STEP_S = 0.01
_SLOW_STEP_S = 0.05

IsCancelled = Callable[[], bool]


class _Decision(msgspec.Struct):
    """The fate of a submission: decided when it begins, valid in all its slices."""

    sequence: int
    injection: Injection | None
    ran_s: float = 0.0


class _DroppedDoorbell(msgspec.Struct):
    """A submission whose doorbell was dropped, and its deadline."""

    sequence: int
    deadline_ns: int


class InjectedFaults:
    """The injections of one engine. Their counters are shared with the supervisor and outlive the engine."""

    def __init__(self, tdr_ms: int) -> None:
        self._tdr_ns = tdr_ms * 1_000_000
        self.messages = 0  # handled messages about injections
        self.stalled_ns = 0  # total duration of injected stalls
        self._injections: dict[int, link.InjectionAdd] = {}
        self._lock = threading.Lock()  # images are loaded in another thread
        self._counters: InjectionCounters | None = None
        self._decisions: WeakKeyDictionary[EngineQueue, _Decision] = WeakKeyDictionary()
        self._dropped: WeakKeyDictionary[EngineQueue, _DroppedDoorbell] = WeakKeyDictionary()

    # ------------------------------------------------------------ messages

    def add(self, message: link.InjectionAdd, fd: int) -> None:
        """Add an injection; take the descriptor of the counters."""
        with self._lock:
            if self._counters is None:
                self._counters = InjectionCounters(fd, message.counters)
            else:
                os.close(fd)
            self._injections[message.id] = message
        self.messages += 1
        failpoints.keep_active(True)

    def drop(self, message: link.InjectionDrop) -> None:
        """End an injection; its past decisions stand."""
        self.messages += 1
        with self._lock:
            self._injections.pop(message.id, None)

    def settle(self, queue: EngineQueue) -> None:
        """Count the hit that a dead engine has logged for the next submission of a queue."""
        number, hits = queue.logged_injection()
        message = self._injections.get(number)
        if message is not None and self._counters is not None:
            self._counters.settle(message.slot, hits)

    def prune(self) -> None:
        """Forget expired injections; with none left the engine runs at full speed again."""
        for queue in [queue for queue, each in self._decisions.items() if _is_over(queue, each.sequence)]:
            del self._decisions[queue]
        for queue in [queue for queue, each in self._dropped.items() if _is_over(queue, each.sequence)]:
            del self._dropped[queue]
        with self._lock:
            for each in list(self._injections.values()):
                if self._counters is not None and self._counters.is_exhausted(each.slot, each.injection):
                    del self._injections[each.id]
            if self._counters is not None and not self._injections:
                self._counters.close()
                self._counters = None
        failpoints.keep_active(bool(self._injections or self._decisions or self._dropped))

    # ------------------------------------------------------------ submissions

    def run(
        self,
        queue: EngineQueue,
        program: Program,
        run: Callable[[], Pause | None],
        is_cancelled: IsCancelled,
    ) -> Pause | None:
        """Run a slice of a submission with `run`, applying its fault if any."""
        decision = self._decide(queue)
        injection = decision.injection
        if injection is None:
            return run()
        self._before(injection, is_cancelled)
        if injection.kind is FaultKind.STALL:
            return CANCELLED
        start = time.monotonic()
        pause = run()
        decision.ran_s += time.monotonic() - start
        if pause is None and injection.kind is FaultKind.DROP_SIGNAL:
            # it is finished, and waits as if for an event until its deadline
            queue.step = len(program.steps)
            return BLOCKED
        if pause is None and injection.kind is FaultKind.SLOW:
            longer_s = injection.seconds + decision.ran_s * (injection.factor - 1.0)
            return _linger(queue, len(program.steps), longer_s, is_cancelled)
        return pause

    def _decide(self, queue: EngineQueue) -> _Decision:
        decision = self._decisions.get(queue)
        if decision is None or decision.sequence != queue.completed + 1:
            injection = self._match(Operation.SUBMISSION, queue.context.session, partial(_note, queue))
            decision = self._decisions[queue] = _Decision(queue.completed + 1, injection)
        return decision

    def _before(self, injection: Injection, is_cancelled: IsCancelled) -> None:
        match injection.kind:
            case FaultKind.HANG:
                _hang()
            case FaultKind.RESET:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.STALL:
                start = time.monotonic_ns()
                while not is_cancelled():
                    time.sleep(_STEP_S)
                self.stalled_ns += time.monotonic_ns() - start
            case FaultKind.LOST:
                raise _failed(ZeResult.ERROR_DEVICE_LOST, "command queue", "the device was lost")
            case FaultKind.ECC:
                raise _failed(ZeResult.ERROR_UNKNOWN, "submission", "uncorrectable memory error")
            case FaultKind.FAIL:
                result = injection.result or ZeResult.ERROR_UNKNOWN
                raise _failed(result, "submission", "it failed")

    # ------------------------------------------------------------ doorbells

    def drops_doorbell(self, session: int, asleep: list[EngineQueue]) -> bool:
        """Whether a doorbell is dropped; `asleep` are queues with work that the engine does not poll."""
        if not asleep:
            return False
        if self._match(Operation.DOORBELL, session) is None:
            for queue in asleep:
                self._dropped.pop(queue, None)
            return False
        deadline_ns = time.monotonic_ns() + self._tdr_ns
        for queue in asleep:
            if queue not in self._dropped:
                self._dropped[queue] = _DroppedDoorbell(queue.completed + 1, deadline_ns)
        return True

    def take_overdue(self) -> list[tuple[EngineQueue, ErrorInfo]]:
        """Return the queues whose dropped doorbell has passed its deadline."""
        now = time.monotonic_ns()
        late = [queue for queue, dropped in self._dropped.items() if dropped.deadline_ns <= now]
        overdue = [queue for queue in late if not _is_over(queue, self._dropped[queue].sequence)]
        for queue in late:
            del self._dropped[queue]
        info = ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object="command queue",
            found=f"injected fault: its doorbell was dropped for {self._tdr_ns // 1_000_000} ms",
            expected="a doorbell that arrives",
            hint="create a new queue",
        )
        return [(queue, info) for queue in overdue]

    # ------------------------------------------------------------ loads

    def before_load(self) -> None:
        """Apply a fault to an image load, in the loader's thread."""
        injection = self._match(Operation.LOAD, 0)
        if injection is None:
            return
        if injection.kind is FaultKind.LOAD_CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        _hang()

    # ------------------------------------------------------------

    def _match(
        self,
        operation: Operation,
        session: int,
        note: Callable[[link.InjectionAdd, int], None] = lambda _injection, _hits: None,
    ) -> Injection | None:
        """Count an operation; return the oldest injection that hits it, after calling `note`."""
        with self._lock:
            for each in self._injections.values():
                injection = each.injection
                if injection.kind_info.operation is not operation:
                    continue
                if injection.sessions and session not in injection.sessions:
                    continue
                if self._counters is not None and self._counters.hit(
                    each.slot, injection, partial(note, each)
                ):
                    return injection
        return None


def _note(queue: EngineQueue, message: link.InjectionAdd, hits: int) -> None:
    """Log a failure; the client receives it even if the engine dies before acting or counting."""
    result = _certain_result(message.injection)
    if result is not None:
        queue.log_injected(result, message.id, hits)


def _certain_result(injection: Injection) -> int | None:
    """Return the result of a submission bound to fail even if the engine dies first, else None."""
    match injection.kind:
        case FaultKind.HANG | FaultKind.STALL | FaultKind.DROP_SIGNAL | FaultKind.LOST:
            return ZeResult.ERROR_DEVICE_LOST
        case FaultKind.ECC:
            return ZeResult.ERROR_UNKNOWN
        case FaultKind.FAIL:
            return injection.result or ZeResult.ERROR_UNKNOWN
    return None


def _linger(queue: EngineQueue, done: int, longer_s: float, is_cancelled: IsCancelled) -> Pause | None:
    """Keep the device busy; the watchdog sees progress."""
    end = time.monotonic() + longer_s
    while (left := end - time.monotonic()) > 0:
        if is_cancelled():
            return CANCELLED
        queue.reached(done, time.monotonic_ns())
        time.sleep(min(left, _SLOW_STEP_S))
    return None


def _hang() -> None:
    while True:
        time.sleep(3600)


def _is_over(queue: EngineQueue, sequence: int) -> bool:
    return queue.closed or queue.completed >= sequence


def _failed(result: ZeResult, object: str, found: str) -> Refused:
    return Refused(ErrorInfo(result=result, object=object, found=f"injected fault: {found}"))
