"""The engine accesses memory in the order of the model, and defects found by the model stay fixed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from softnpu.emulator.engine.commands import program as programs
from softnpu.emulator.engine.commands.steps import PREEMPTED
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.running.faults import InjectedFaults, _note
from softnpu.emulator.engine.running.runner import Runner
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.injections import FaultKind, Injection
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters
from tests.model.engine import Engine
from tests.model.operations import Memory, Steps
from tests.model.recording import EVENT_AT, FENCE_AT, MEMORY, TICKET, RecordedQueue, accesses
from tests.model.world import FAILED, SUCCESS, Command, Event, Slot, World
from tests.support.fast_path import Raised

pytestmark = pytest.mark.quick

WORLD = World({"x": (Command("signal", "event"),)})
SLOT = Slot(1, "x", "fence", TICKET)
FAULT = ErrorInfo(result=ZeResult.ERROR_UNKNOWN, object="submission", found="it failed")


def _memory(**words: Any) -> Memory:
    memory = WORLD.memory() | {"A.slot0": SLOT, "A.tail": 1, "fence.armed": TICKET}
    return memory | {word.replace("_", ".", 1).replace("_", " "): value for word, value in words.items()}


def _model(steps: Callable[[Engine], Steps], **words: Any) -> list[str]:
    return accesses(steps(Engine(WORLD)), _memory(**words))


@pytest.fixture
def recorded() -> RecordedQueue:
    return RecordedQueue()


# ---------------------------------------------------------------- the order of accesses


@pytest.mark.parametrize(("info", "result"), [(None, SUCCESS), (FAULT, FAILED)])
def test_a_submission_ends_in_the_order_of_the_model(
    recorded: RecordedQueue, info: ErrorInfo | None, result: str
) -> None:
    queue = recorded.engine()
    submission = queue.next()
    queue.fence(submission)
    recorded.log.clear()

    queue.finish(submission, info)

    assert recorded.log == _model(lambda engine: engine.finish("A", SLOT, result))
    assert recorded.log[-1] == "A.done"


def test_reports_missing_from_a_dead_engine_follow_the_order_of_the_model(
    recorded: RecordedQueue,
) -> None:
    recorded.state_words[link.STATE_COMPLETED] = 1

    recorded.engine()

    expected = _model(lambda engine: engine.settle("A"), A_completed=1)
    assert recorded.log == expected
    assert expected[-3:] == ["fence.result", "fence.signalled", "A.done"]


@pytest.mark.parametrize("happened", [False, True])
def test_an_event_is_settled_in_the_order_of_the_model(recorded: RecordedQueue, happened: bool) -> None:
    _note_event(recorded, changes=0)
    if happened:
        recorded.real.longs[EVENT_AT >> 3] = 1 << 32

    queue = recorded.engine()

    words = {"A_intent": (1, 0), "A_intent_event": "event", "event": Event(changes=int(happened))}
    assert recorded.log == _model(lambda engine: engine.settle("A"), **words)
    assert queue.step == int(happened)


def test_an_event_is_changed_in_the_order_of_the_model(recorded: RecordedQueue) -> None:
    queue = recorded.engine()
    recorded.log.clear()
    at = MemoryAt(MEMORY, EVENT_AT)

    running = cast(Any, SimpleNamespace(queue=queue, signalled=bool))
    programs._signal(recorded.event, Range((0, 0), EVENT_AT, EVENT_AT + 64), at, running)

    assert recorded.log == _model(lambda engine: engine.command("A", SLOT, 0, Command("signal", "event")))
    assert recorded.event.changes == 1


def test_an_injection_is_recorded_in_the_order_of_the_model(recorded: RecordedQueue) -> None:
    queue = recorded.engine()
    recorded.log.clear()

    queue.log_injected(ZeResult.ERROR_DEVICE_LOST, 1, 1)

    assert recorded.log == ["A.injected", "A.injected result", "A.injection hits", "A.injected"]


def test_a_hit_recorded_but_not_counted_by_a_dead_engine_is_counted_and_reported(
    recorded: RecordedQueue,
) -> None:
    counters, injection = InjectionCounters.new(1), Injection(kind=FaultKind.FAIL)
    message = link.InjectionAdd(id=7, slot=0, counters=1, injection=injection)
    queue = recorded.engine()

    class Death(BaseException):
        pass

    def dies(hits: int) -> None:
        _note(queue, message, hits)
        raise Death

    with pytest.raises(Death):
        counters.hit(0, injection, dies)
    assert counters.read(0) == (1, 0)

    after = recorded.engine()
    injected = InjectedFaults(2000)
    injected.add(message, os.dup(counters.fd))
    for _ in range(2):  # engines may die again
        injected.settle(after)
        assert counters.read(0) == (1, 1)
    assert after.poisoned == 1
    assert after.poisoned_info is not None
    assert after.poisoned_info.result == ZeResult.ERROR_UNKNOWN
    injected.drop(link.InjectionDrop(id=7))
    injected.prune()
    counters.close()


# ---------------------------------------------------------------- found by the model


def test_an_intent_not_carried_out_is_not_mistaken_for_another_queues_change(
    recorded: RecordedQueue,
) -> None:
    _note_event(recorded, changes=0)
    recorded.engine()  # it dies, too, after another queue has changed the event
    recorded.real.longs[EVENT_AT >> 3] = 1 << 32

    queue = recorded.engine()

    assert queue.step == 0


def test_a_resumed_long_command_is_recorded_as_done_before_the_next_begins(
    recorded: RecordedQueue,
) -> None:
    queue = recorded.engine()
    runner = _runner()
    reached = []
    steps = (lambda: None, lambda: reached.append(recorded.state_words[link.STATE_REACHED]))
    program = programs.Program(
        data=b"", uses=frozenset(), steps=steps, commands=2, inferences=0, journaled=True
    )
    queue.parts = iter([None])  # of step 0: the rest was deferred

    runner._run_steps(queue, program)

    assert reached == [1 << link.REACHED_BITS | 1]


def test_a_queue_dropped_during_the_lookup_of_its_fence_does_not_run(
    recorded: RecordedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = recorded.engine()
    lookup = queue.context.space.own_memory

    def memory(handle: int) -> Any:  # unknown, so messages are read, and this is one of them
        queue.closed = True
        return lookup(handle)

    cast(Any, queue.context.space).own_memory = memory
    runner = _runner()
    monkeypatch.setattr(runner, "_run_slice", _must_not_run)

    runner.run(queue)

    assert recorded.state_words[link.STATE_RUNNING] == 0
    assert recorded.state_words[link.STATE_COMPLETED] == 0


def test_an_abort_during_preemption_counts(recorded: RecordedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = recorded.engine()
    runner = _runner()

    def makes_room(*_: object) -> object:
        runner._abort = FAULT
        return PREEMPTED

    monkeypatch.setattr(runner, "_run_slice", makes_room)

    runner.run(queue)

    assert recorded.state_words[link.STATE_COMPLETED] == 1
    assert _result(recorded) == ZeResult.ERROR_UNKNOWN


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancellation_comes_too_late_for_a_logged_intent(
    recorded: RecordedQueue, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    queue = recorded.engine()
    if begun:
        queue.log_intent(1)
    recorded.real.longs[(FENCE_AT + records.FENCE_CANCEL) >> 3] = TICKET
    runner = _runner()
    monkeypatch.setattr(runner, "_run_slice", lambda *_: None)

    runner.run(queue)

    assert _result(recorded) == (0 if begun else ZeResult.ERROR_NOT_AVAILABLE)


def _note_event(recorded: RecordedQueue, changes: int) -> None:
    recorded.state_words[link.STATE_INTENT_STEP] = 1 << link.REACHED_BITS
    recorded.state_words[link.STATE_INTENT_VALUE] = changes
    recorded.state_words[link.STATE_INTENT_EVENT] = MEMORY
    recorded.state_words[link.STATE_INTENT_OFFSET] = EVENT_AT


def _result(recorded: RecordedQueue) -> int:
    return recorded.real.words[(records.RING_HEADER + records.SLOT_RESULT) >> 2]


def _runner() -> Runner:
    """Return a runner without an engine: it gets no messages, and counts no time."""
    nothing = cast(Any, lambda *_, **__: None)
    counters = SimpleNamespace(
        submissions=0, busy_ns=0, publish=nothing, count_fault=nothing, count_tiles=nothing
    )
    loop = SimpleNamespace(send=nothing, read_messages=nothing, alive=True)
    scheduler = SimpleNamespace(charge=nothing)
    overlap = SimpleNamespace(cancel=nothing, begin=nothing, beside=lambda _: [])
    parts: Any = (
        loop,
        QueueTable(),
        scheduler,
        counters,
        overlap,
        InjectedFaults(2000),
        None,
        None,
        Raised(),
        2000,
    )
    runner = Runner(*parts)
    runner._poll_due_ns = cast(Any, math.inf)
    return runner


def _must_not_run(queue: EngineQueue, *_: object) -> object:
    raise AssertionError(f"queue {queue.handle} runs")
