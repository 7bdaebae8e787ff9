"""Faults that a user asks for and an engine shows: in submissions, at doorbells, when graphs are loaded.

Nothing of this runs unless there is an injection: the engine asks where it asks its fail-points.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.steps import BLOCKED, GIVEN_UP
from softnpu.emulator.interface.injections import FaultKind, Injection, Operation
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters

if TYPE_CHECKING:
    from softnpu.emulator.engine.context import EngineContext
    from softnpu.emulator.engine.program import Program
    from softnpu.emulator.engine.queue import EngineQueue

_STEP_S = 0.01
_SLOW_STEP_S = 0.05

GivenUp = Callable[[], bool]


@dataclass
class _Rule:
    """An injection, and its place among the counters."""

    id: int
    place: int
    injection: Injection


@dataclass
class _Struck:
    """What becomes of a submission: decided when it begins, valid in all of its slices."""

    sequence: int
    injection: Injection | None
    ran_s: float = 0.0


@dataclass
class _Unheard:
    """A submission whose doorbell was not heard, and until when somebody may ring again."""

    sequence: int
    give_up_ns: int


class EngineFaults:
    """The injections of one engine. Their counters are shared with the supervisor and outlive it."""

    def __init__(self, tdr_ms: int) -> None:
        self._tdr_ns = tdr_ms * 1_000_000
        self.orders = 0  # that were obeyed
        self._rules: dict[int, _Rule] = {}
        self._lock = threading.Lock()  # images are loaded in a thread of their own
        self._counts: InjectionCounters | None = None
        self._struck: WeakKeyDictionary[EngineQueue, _Struck] = WeakKeyDictionary()
        self._unheard: WeakKeyDictionary[EngineQueue, _Unheard] = WeakKeyDictionary()

    # ------------------------------------------------------------ orders

    def add(self, order: link.InjectionAdd, fd: int) -> None:
        """A new injection; takes the descriptor of the counters."""
        with self._lock:
            if self._counts is None:
                self._counts = InjectionCounters(fd, order.counters)
            else:
                os.close(fd)
            self._rules[order.id] = _Rule(order.id, order.place, order.injection)
        self.orders += 1
        failpoints.keep_active(True)

    def drop(self, order: link.InjectionDrop) -> None:
        """This one is not wanted any more; what it has begun stays as it is."""
        self.orders += 1
        with self._lock:
            self._rules.pop(order.id, None)

    def tidy(self) -> None:
        """Forgets what can do nothing any more. Without anything left the engine runs as if none had been."""
        for queue in [queue for queue, struck in self._struck.items() if _over(queue, struck.sequence)]:
            del self._struck[queue]
        for queue in [queue for queue, unheard in self._unheard.items() if _over(queue, unheard.sequence)]:
            del self._unheard[queue]
        with self._lock:
            for rule in list(self._rules.values()):
                if self._counts is not None and self._counts.is_exhausted(rule.place, rule.injection):
                    del self._rules[rule.id]
            if self._counts is not None and not self._rules:
                self._counts.close()
                self._counts = None
        failpoints.keep_active(bool(self._rules or self._struck or self._unheard))

    # ------------------------------------------------------------ submissions

    def run(
        self, queue: EngineQueue, program: Program, run: Callable[[], object], is_cancelled: GivenUp
    ) -> object:
        """Runs a slice of a submission by `run`, with what was asked for; as `Runner` does without."""
        struck = self._strike_submission(queue)
        injection = struck.injection
        if injection is None:
            return run()
        self._before(injection, is_cancelled)
        if injection.kind is FaultKind.STALL:
            return GIVEN_UP
        start = time.monotonic()
        waits = run()
        struck.ran_s += time.monotonic() - start
        if waits is None and injection.kind is FaultKind.DROP_SIGNAL:
            # it waits as if for an event: the device gives it up in the end, and all of it has been done
            queue.step = len(program.steps)
            return BLOCKED
        if waits is None and injection.kind is FaultKind.SLOW:
            longer_s = injection.seconds + struck.ran_s * (injection.factor - 1.0)
            return _linger(queue, len(program.steps), longer_s, is_cancelled)
        return waits

    def _strike_submission(self, queue: EngineQueue) -> _Struck:
        struck = self._struck.get(queue)
        if struck is None or struck.sequence != queue.completed + 1:
            injection = self._strike(Operation.SUBMISSION, queue.context.session)
            doom = None if injection is None else _doom(injection)
            if doom is not None:
                queue.doom(doom)
            struck = self._struck[queue] = _Struck(queue.completed + 1, injection)
        return struck

    def _before(self, injection: Injection, is_cancelled: GivenUp) -> None:
        match injection.kind:
            case FaultKind.HANG:
                _hang()
            case FaultKind.RESET:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.STALL:
                while not is_cancelled():
                    time.sleep(_STEP_S)
            case FaultKind.LOST:
                raise _failed(ZeResult.ERROR_DEVICE_LOST, "command queue", "the device was lost")
            case FaultKind.ECC:
                raise _failed(ZeResult.ERROR_UNKNOWN, "submission", "uncorrectable memory error")
            case FaultKind.FAIL:
                result = injection.result or ZeResult.ERROR_UNKNOWN
                raise _failed(result, "submission", "it failed")

    # ------------------------------------------------------------ doorbells

    def overhears(self, context: EngineContext, asleep: list[EngineQueue]) -> bool:
        """Whether this ring of a doorbell is not heard. `asleep`: queues that nobody else looks at."""
        if not asleep:
            return False
        if self._strike(Operation.DOORBELL, context.session) is None:
            for queue in asleep:
                self._unheard.pop(queue, None)
            return False
        give_up_ns = time.monotonic_ns() + self._tdr_ns
        for queue in asleep:
            if queue not in self._unheard:
                self._unheard[queue] = _Unheard(queue.completed + 1, give_up_ns)
        return True

    def is_cancelled(self) -> list[tuple[EngineQueue, ErrorInfo]]:
        """Queues whose doorbell was not heard for so long that the device gives up on them."""
        now = time.monotonic_ns()
        late = [queue for queue, unheard in self._unheard.items() if unheard.give_up_ns <= now]
        found = [queue for queue in late if not _over(queue, self._unheard[queue].sequence)]
        for queue in late:
            del self._unheard[queue]
        what = f"injected fault: its doorbell was not heard for {self._tdr_ns // 1_000_000} ms"
        info = ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object="command queue",
            found=what,
            expected="a doorbell that is heard",
            hint="create a new queue",
        )
        return [(queue, info) for queue in found]

    # ------------------------------------------------------------ loads

    def load(self) -> None:
        """A graph is about to be loaded, in the loader's thread."""
        injection = self._strike(Operation.LOAD, 0)
        if injection is None:
            return
        if injection.kind is FaultKind.LOAD_CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        _hang()

    # ------------------------------------------------------------

    def _strike(self, operation: Operation, session: int) -> Injection | None:
        """Counts an operation; the injection that it is hit by. The oldest that hits is the only one."""
        with self._lock:
            for rule in self._rules.values():
                injection = rule.injection
                if injection.facts.operation is not operation:
                    continue
                if injection.sessions and session not in injection.sessions:
                    continue
                if self._counts is not None and self._counts.hit(rule.place, injection):
                    return injection
        return None


def _doom(injection: Injection) -> int | None:
    """How a submission that it hits ends in any case, also if the engine dies before; None: not by itself."""
    match injection.kind:
        case FaultKind.HANG | FaultKind.STALL | FaultKind.DROP_SIGNAL | FaultKind.LOST:
            return ZeResult.ERROR_DEVICE_LOST
        case FaultKind.ECC:
            return ZeResult.ERROR_UNKNOWN
        case FaultKind.FAIL:
            return injection.result or ZeResult.ERROR_UNKNOWN
    return None


def _linger(queue: EngineQueue, done: int, longer_s: float, is_cancelled: GivenUp) -> object:
    """Keeps the device busy; the watchdog sees progress."""
    end = time.monotonic() + longer_s
    while (left := end - time.monotonic()) > 0:
        if is_cancelled():
            return GIVEN_UP
        queue.reached(done, time.monotonic_ns())
        time.sleep(min(left, _SLOW_STEP_S))
    return None


def _hang() -> None:
    while True:
        time.sleep(3600)


def _over(queue: EngineQueue, sequence: int) -> bool:
    return queue.closed or queue.completed >= sequence


def _failed(result: ZeResult, object: str, found: str) -> Refused:
    return Refused(ErrorInfo(result=result, object=object, found=f"injected fault: {found}"))
