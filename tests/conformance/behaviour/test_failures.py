"""How a failed submission is reported: by its fence or the queue, and once each."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle
from tests.conformance.rig import DEADLINE, Rig, ok

INVALID = ZeResult.ERROR_INVALID_ARGUMENT


@pytest.fixture
def failing(rig: Rig) -> Handle:
    """Return a closed list that the device refuses: it copies beyond its memory."""
    return rig.copy_list(rig.host(1 << 16), rig.host(64), 1 << 16)


def test_fence_of_several_lists_reports_the_first_that_failed(rig: Rig, failing: Handle) -> None:
    for before in (1, 0):
        queue, target = rig.queue(), rig.host(8)
        fence, works = rig.fence(queue), rig.copy_list(target, rig.data(b"finished"), 8)
        rig.submit(queue, *[works] * before, failing, works, fence=fence)
        assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == INVALID
        assert rig.api.ze_fence_query_status(fence) == INVALID  # and stays so
        assert rig.api.read(target, 8) == b"finished"  # the later lists have run


def test_fence_of_more_lists_than_slots_reports_the_first_that_failed(rig: Rig, failing: Handle) -> None:
    queue, target = rig.queue(), rig.host(8)
    fence, works = rig.fence(queue), rig.copy_list(target, rig.data(b"finished"), 8)
    rig.submit(queue, works, failing, *[works] * 600, fence=fence)
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == INVALID
    assert rig.api.read(target, 8) == b"finished"
    rig.finish(queue)  # already reported
    rig.submit(queue, *[works] * 600, fence=fence)
    ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))


def test_failure_that_no_fence_has_reported_is_reported_by_the_queue_once(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    rig.submit(queue, failing)
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == INVALID
    rig.finish(queue)


def test_failure_that_a_fence_has_reported_is_not_reported_again(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    fence = rig.fence(queue)
    rig.submit(queue, failing, fence=fence)
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == INVALID
    rig.finish(queue)


def test_fence_of_a_later_failure_hides_no_earlier_one(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    fence = rig.fence(queue)
    rig.submit(queue, failing)
    rig.submit(queue, failing, fence=fence)
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == INVALID
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == INVALID
    rig.finish(queue)


def test_queue_says_how_many_more_have_failed(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    for _ in range(3):
        rig.submit(queue, failing)
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == INVALID
    assert "2 more failed" in rig.api.ze_driver_get_last_error_description(rig.driver).get()
    rig.finish(queue)


def test_failure_is_reported_though_its_slot_was_used_again(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    works = rig.copy_list(rig.host(8), rig.data(b"finished"), 8)
    rig.submit(queue, failing)
    for _ in range(600):
        rig.submit(queue, works)
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == INVALID


def test_fence_that_waits_for_something_else_by_now_hides_no_failure(rig: Rig, failing: Handle) -> None:
    queue = rig.queue()
    fence = rig.fence(queue)
    rig.submit(queue, failing, fence=fence)
    rig.submit(queue, rig.copy_list(rig.host(8), rig.data(b"finished"), 8), fence=fence)
    ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == INVALID
