"""Fences, events and queues that report at the wrong moment, or forget."""

from __future__ import annotations

from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE
from tests.conformance.defects.defect import wrong_call

EXECUTE = "ze_command_queue_execute_command_lists"
SYNCHRONIZE = "ze_command_queue_synchronize"


def success_instead_of(wrong: ZeResult, result: ZeResult) -> ZeResult:
    return ZeResult.SUCCESS if result == wrong else result


@wrong_call(
    "test_fences.py::test_fence_is_not_ready_while_its_work_is_blocked",
    "ze_fence_query_status",
    "ze_fence_host_synchronize",
)
def signals_early(_driver: Any, right: Any, *arguments: Any) -> Any:
    """A fence is signalled before its work has ended."""
    return success_instead_of(ZeResult.NOT_READY, right(*arguments))


@wrong_call("test_fences.py::test_reset_fence_is_not_ready", "ze_fence_reset")
def fence_reset_does_nothing(_driver: Any, _right: Any, fence: Any) -> Any:
    """A fence stays signalled when it is reset."""
    return ZeResult.ERROR_INVALID_NULL_HANDLE if fence is None else ZeResult.SUCCESS


@wrong_call(
    "test_fences.py::test_timeout_that_passes_is_not_ready_and_can_be_tried_again",
    "ze_fence_host_synchronize",
)
def ignores_the_timeout(_driver: Any, right: Any, fence: Any, timeout: int) -> Any:
    """A wait lasts until the work has ended, ignoring the time-out."""
    return right(fence, INFINITE if timeout else 0)


@wrong_call(
    "test_fences.py::test_fence_of_another_queue_is_refused_after_the_work_was_submitted",
    EXECUTE,
)
def takes_any_queues_fence(_driver: Any, right: Any, *arguments: Any) -> Any:
    """A fence of another queue is not refused."""
    return success_instead_of(ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT, right(*arguments))


@wrong_call("test_fences.py::test_only_empty_lists_signal_the_fence_at_once", EXECUTE)
def forgets_empty_submissions(
    driver: Any, right: Any, queue: Any, count: int, lists: Any, fence: Any = None
) -> Any:
    """The fence of a submission with only empty lists is never signalled."""
    result = right(queue, count, lists, fence)
    if lists is not None and all(getattr(entry, "_commands", None) == [] for entry in lists):
        driver.ze_fence_reset(fence)
    return result


@wrong_call("test_queues.py::test_synchronize_waits_for_the_work", SYNCHRONIZE)
def synchronize_does_not_wait(_driver: Any, right: Any, queue: Any, timeout: int) -> Any:
    """Synchronizing a queue polls once and reports success."""
    return success_instead_of(ZeResult.NOT_READY, right(queue, min(timeout, 0)))


@wrong_call("test_queues.py::test_fence_and_queue_of_an_aborted_submission_are_lost", SYNCHRONIZE)
def hides_lost_device(driver: Any, right: Any, queue: Any, timeout: int) -> Any:
    """A lost queue says so once, then reports success."""
    result = right(queue, timeout)
    if result != ZeResult.ERROR_DEVICE_LOST:
        return result
    told = driver.noted.setdefault(id(queue), [])
    told.append(result)
    return result if len(told) == 1 else ZeResult.SUCCESS


@wrong_call(
    "test_events.py::test_event_stays_signalled_until_it_is_reset",
    "ze_event_query_status",
    "ze_event_host_synchronize",
)
def resets_itself(driver: Any, right: Any, event: Any, *timeout: int) -> Any:
    """An event is reset as soon as somebody has seen it signalled."""
    result = right(event, *timeout)
    if result == ZeResult.SUCCESS:
        driver.ze_event_host_reset(event)
    return result


@wrong_call("test_events.py::test_device_waits_for_a_host_signal", "ze_command_list_append_wait_on_events")
def ignores_waits(driver: Any, right: Any, entry: Any, count: int, events: Any) -> Any:
    """A list does not wait for events."""
    if events and None not in events:
        return driver.ze_command_list_append_barrier(entry)
    return right(entry, count, events)


@wrong_call("test_events.py::test_host_reset_acts_at_once", "ze_event_host_reset")
def host_reset_does_nothing(_driver: Any, _right: Any, event: Any) -> Any:
    """An event stays signalled when the host resets it."""
    return ZeResult.ERROR_INVALID_NULL_HANDLE if event is None else ZeResult.SUCCESS


@wrong_call("test_events.py::test_used_index_is_an_invalid_argument", "ze_event_create")
def shares_indices(driver: Any, right: Any, pool: Any, desc: Any, *out: bool) -> Any:
    """A used index of a pool returns the existing event, instead of an error."""
    key = (id(pool), desc and desc.index)
    return driver.noted.get(key) or driver.noted.setdefault(key, right(pool, desc, *out))
