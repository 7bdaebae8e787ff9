"""Command lists that do not keep their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle, Handles
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_command_lists.py::test_reset_opens_and_empties_a_list")
class ResetKeepsCommands(PythonDriver):
    """Reset opens a list again, with the commands still in it."""

    def ze_command_list_reset(self, command_list: Handle) -> ZeResult:
        kept = list(getattr(command_list, "_commands", ()))
        result = super().ze_command_list_reset(command_list)
        if result == ZeResult.SUCCESS:
            getattr(command_list, "_commands").extend(kept)  # noqa: B009 - a driver's internals
        return result


@caught_by("test_command_lists.py::test_append_after_close_is_not_available")
class AppendsAfterClose(PythonDriver):
    """A closed list silently takes no command, and says that all is well."""

    def ze_command_list_append_barrier(self, command_list: Handle, *events: Any) -> ZeResult:
        result = super().ze_command_list_append_barrier(command_list, *events)
        return ZeResult.SUCCESS if result == ZeResult.ERROR_NOT_AVAILABLE else result


@caught_by("test_command_lists.py::test_unclosed_list_is_uninitialized")
class ExecutesOpenLists(PythonDriver):
    """A list that was not closed is closed when it is executed."""

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        for entry in lists or ():
            self.ze_command_list_close(entry)
        return super().ze_command_queue_execute_command_lists(queue, count, lists, fence)


@caught_by("test_command_lists.py::test_closed_list_runs_many_times_without_reset")
class RunsOnce(PythonDriver):
    """A list runs once; executing it again does nothing."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._ran: set[int] = set()

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        fresh = [entry for entry in (lists or ())[:count] if id(entry) not in self._ran]
        self._ran.update(id(entry) for entry in fresh)
        if lists and not fresh:
            return ZeResult.SUCCESS
        return super().ze_command_queue_execute_command_lists(queue, len(fresh), fresh, fence)
