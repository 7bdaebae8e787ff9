"""How a submission ended is told truly, though its slot and its fence are used again at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from softnpu.driver import Context, ZeResult
from softnpu.emulator.interface.shared import FenceRecord
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, copy, execute, failure, waits


def test_a_failure_is_told_though_its_slot_became_free_just_after_the_driver_had_looked(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, never = context.create_command_queue(slots=2), context.create_event()
    fence = execute(queue, waits(context, never))
    queue.execute_command_lists([barrier(context)])
    read = queue._results.read

    def read_and_end(completed: int) -> None:
        read(completed)
        fence.cancel()
        wait_until(lambda: queue.describe().completed >= 2)

    with monkeypatch.context() as patch:
        patch.setattr(queue._results, "read", read_and_end)
        queue.execute_command_lists([barrier(context)])  # in the slot of the first one

    failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)


class _ArmedAgain:
    """A fence record that is given to another submission, which ends, before its result is read."""

    def __init__(self, record: FenceRecord, arm: Callable[[], None]) -> None:
        self._record = record
        self._arm = arm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    @property
    def result(self) -> int:
        self._arm()
        return self._record.result


def test_a_fence_tells_no_result_of_a_submission_that_it_was_given_to_meanwhile(context: Context) -> None:
    queue = context.create_command_queue()
    short, long = context.alloc_host(64), context.alloc_host(4096)
    fence = execute(queue, copy(context, long, short, 4096))
    wait_until(lambda: queue.describe().completed >= 1)

    def arm() -> None:
        queue.execute_command_lists([barrier(context)], fence)
        wait_until(lambda: queue.describe().completed >= 2)

    fence._record = cast(FenceRecord, _ArmedAgain(fence._record, arm))

    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
