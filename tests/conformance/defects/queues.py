"""Queues that lose their order, or the work itself."""

from __future__ import annotations

from pathlib import Path

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle, Handles
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_queues.py::test_device_sync_queue_runs_lists_in_order")
class RunsListsBackwards(PythonDriver):
    """The lists of one submission run in the wrong order."""

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        turned = list(reversed(lists)) if lists is not None else None
        return super().ze_command_queue_execute_command_lists(queue, count, turned, fence)


@caught_by("test_fences.py::test_fence_waits_for_all_lists_of_its_submission")
class RunsOnlyTheFirstList(PythonDriver):
    """Only the first list of a submission runs."""

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        return super().ze_command_queue_execute_command_lists(queue, min(count, 1), lists, fence)


@caught_by("test_queues.py::test_synchronize_waits_for_the_work")
class SynchronizeDoesNotWait(PythonDriver):
    """Synchronizing a queue looks once and says success."""

    def ze_command_queue_synchronize(self, queue: Handle, timeout: int) -> ZeResult:
        result = super().ze_command_queue_synchronize(queue, min(timeout, 0))
        return ZeResult.SUCCESS if result == ZeResult.NOT_READY else result


@caught_by("test_queues.py::test_fence_and_queue_of_an_aborted_submission_are_lost")
class HidesLostDevice(PythonDriver):
    """A lost queue says so once, and then that all is well."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._told: set[int] = set()

    def ze_command_queue_synchronize(self, queue: Handle, timeout: int) -> ZeResult:
        result = super().ze_command_queue_synchronize(queue, timeout)
        if result != ZeResult.ERROR_DEVICE_LOST:
            return result
        first = id(queue) not in self._told
        self._told.add(id(queue))
        return result if first else ZeResult.SUCCESS
