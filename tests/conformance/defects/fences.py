"""Fences that lie."""

from __future__ import annotations

from pathlib import Path

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE
from tests.conformance.api.structures import Handle, Handles
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_fences.py::test_fence_is_not_ready_while_its_work_is_blocked")
class SignalsEarly(PythonDriver):
    """A fence is signalled when its work is submitted."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._submitted: set[int] = set()

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        self._submitted.add(id(fence))
        return super().ze_command_queue_execute_command_lists(queue, count, lists, fence)

    def ze_fence_query_status(self, fence: Handle) -> ZeResult:
        return ZeResult.SUCCESS if id(fence) in self._submitted else super().ze_fence_query_status(fence)

    def ze_fence_host_synchronize(self, fence: Handle, timeout: int) -> ZeResult:
        if id(fence) in self._submitted:
            return ZeResult.SUCCESS
        return super().ze_fence_host_synchronize(fence, timeout)


@caught_by("test_fences.py::test_reset_fence_is_not_ready")
class FenceResetDoesNothing(PythonDriver):
    """A fence stays signalled when it is reset."""

    def ze_fence_reset(self, fence: Handle) -> ZeResult:
        return ZeResult.ERROR_INVALID_NULL_HANDLE if fence is None else ZeResult.SUCCESS


@caught_by("test_fences.py::test_timeout_that_passes_is_not_ready_and_can_be_tried_again")
class IgnoresTheTimeout(PythonDriver):
    """A wait lasts until the work has ended, whatever the time-out."""

    def ze_fence_host_synchronize(self, fence: Handle, timeout: int) -> ZeResult:
        return super().ze_fence_host_synchronize(fence, INFINITE if timeout else 0)


@caught_by("test_fences.py::test_fence_of_another_queue_is_refused_after_the_work_was_submitted")
class TakesAnyQueuesFence(PythonDriver):
    """A fence of another queue is not refused."""

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        result = super().ze_command_queue_execute_command_lists(queue, count, lists, fence)
        foreign = result == ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT
        return ZeResult.SUCCESS if foreign else result


@caught_by("test_fences.py::test_only_empty_lists_signal_the_fence_at_once")
class ForgetsEmptySubmissions(PythonDriver):
    """The fence of a submission with only empty lists is never signalled."""

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        result = super().ze_command_queue_execute_command_lists(queue, count, lists, fence)
        if lists is not None and all(getattr(entry, "_commands", None) == [] for entry in lists):
            self.ze_fence_reset(fence)
        return result
