"""Submissions in which a signal handler raises: each counts in full or not at all, also for its fence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from softnpu.driver import (
    CommandQueue,
    Context,
    Fence,
    ZeResult,
    command_queue,
    submissions,
    submit_calls,
)
from softnpu.driver import fence as fence_module
from tests.support.waiting import wait_until
from tests.support.work import LONG, SECOND, barrier, failure, recorded, run, waits

pytestmark = pytest.mark.quick


class _Interrupts:
    """Raises once, at the next of the places where Python calls signal handlers.

    Those are the begin of a function in Python, and the end of a call into C.
    """

    def __init__(self) -> None:
        self._passed = 0

    def reach(self, call: Callable[[], object]) -> bool:
        """Call it, and raise in it, one place later than the last time. Return whether there was one."""
        left = self._passed = self._passed + 1

        def at_place(_frame: object, event: str, _argument: object) -> None:
            nonlocal left
            if event in ("call", "c_return"):
                left -= 1
                if not left:
                    raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            sys.setprofile(at_place)
            try:
                call()
            finally:
                sys.setprofile(None)
        return left <= 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("before", ["unused", "ended", "in flight"])
@pytest.mark.parametrize("in_cpp", [True, False])
def test_a_submission_counts_in_full_or_not_at_all(
    context: Context, monkeypatch: pytest.MonkeyPatch, in_cpp: bool, before: str, count: int
) -> None:
    assert submit_calls.CALLS is not None
    if not in_cpp:
        for module in (command_queue, submissions):
            monkeypatch.setattr(module, "CALLS", None)
    interrupts, outcomes = _Interrupts(), []
    while True:
        queue, gate = context.create_command_queue(), context.create_event()
        lists, fence = [barrier(context) for _ in range(count)], queue.create_fence()
        run(queue, *lists)
        assert queue.synchronize(LONG)
        if before != "unused":
            queue.execute_command_lists([waits(context, gate)], fence)
        if before == "ended":
            gate.host_signal()
            assert queue.synchronize(LONG)
        tail, state = queue._tail, _state(fence)
        if not interrupts.reach(lambda: queue.execute_command_lists(lists, fence)):  # noqa: B023
            break
        counts = queue._tail != tail
        outcomes.append(counts)
        assert (_state(fence) == state) is not counts
        assert all(sequence <= queue._tail for sequence, _ in queue._in_flight)
        gate.host_signal()
        assert queue.synchronize(LONG)
        assert not any(commands._recording.in_flight() for commands in lists)
        assert fence.host_synchronize(LONG) is (counts or before != "unused")
        run(queue, barrier(context))
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


def _state(fence: Fence) -> tuple[object, ...]:
    return fence._execution, fence._signalled, fence._record.armed


def test_a_fence_waits_for_its_work_after_an_interrupted_call_without_any(
    context: Context, queue: CommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    fence, gate = queue.create_fence(), context.create_event()
    queue.execute_command_lists([waits(context, gate)], fence)
    monkeypatch.setattr(fence_module, "FencedExecution", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.execute_command_lists([recorded(context)], fence)
    gate.host_signal()
    assert fence.host_synchronize(LONG)


def test_what_was_published_runs_after_a_signal_handler_has_raised(
    context: Context, queue: CommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_queue, "CALLS", None)  # C++ rings itself: no handler runs before
    ring_doorbell, interrupts = context._ring_doorbell, [KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        ring_doorbell()

    wait_until(lambda: queue._ring.is_asleep, what="the device waits for its doorbell")
    monkeypatch.setattr(context, "_ring_doorbell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.execute_command_lists([barrier(context)])
    assert queue.synchronize(20 * SECOND)


class _Interrupted(dict[int, Any]):
    """A signal handler raises once, after an entry was taken."""

    raised = False

    def pop(self, *args: Any) -> Any:
        entry = super().pop(*args)
        if not self.raised:
            self.raised = True
            raise KeyboardInterrupt
        return entry


def test_a_failure_is_reported_after_a_signal_handler_has_raised_when_it_was_read(
    context: Context, queue: CommandQueue
) -> None:
    memory, fence = context.alloc_host(64), queue.create_fence()
    commands = recorded(context, lambda c: c.append_memory_copy(memory, memory, 65))
    queue._results._executions = _Interrupted()
    with suppress(KeyboardInterrupt):
        queue.execute_command_lists([commands], fence)
        fence.host_synchronize(LONG)
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
