"""Handles that never die, or die without a trace."""

from __future__ import annotations

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_arguments.py::test_destroyed_object_is_refused[fence]")
class DestroysTwice(PythonDriver):
    """Destroying a fence for the second time is silently accepted."""

    def ze_fence_destroy(self, fence: Handle) -> ZeResult:
        result = super().ze_fence_destroy(fence)
        stale = fence is not None and result == ZeResult.ERROR_INVALID_NULL_HANDLE
        return ZeResult.SUCCESS if stale else result


@caught_by("test_arguments.py::test_destroyed_object_is_refused[fence]")
class AcceptsStaleFences(PythonDriver):
    """A destroyed fence can still be asked: it says that it is not ready."""

    def ze_fence_query_status(self, fence: Handle) -> ZeResult:
        result = super().ze_fence_query_status(fence)
        stale = fence is not None and result == ZeResult.ERROR_INVALID_NULL_HANDLE
        return ZeResult.NOT_READY if stale else result


@caught_by("test_leaks.py::test_created_and_destroyed_objects_are_gone[queue]")
class LeaksQueues(PythonDriver):
    """A destroyed queue stays in the daemon."""

    def ze_command_queue_destroy(self, queue: Handle) -> ZeResult:
        return ZeResult.ERROR_INVALID_NULL_HANDLE if queue is None else ZeResult.SUCCESS


@caught_by("test_contexts.py::test_destroying_a_context_gives_back_what_was_created_in_it")
class LeaksContexts(PythonDriver):
    """A destroyed context stays in the daemon, with all that was created in it."""

    def ze_context_destroy(self, context: Handle) -> ZeResult:
        return ZeResult.ERROR_INVALID_NULL_HANDLE if context is None else ZeResult.SUCCESS
