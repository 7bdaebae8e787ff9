"""Graphs whose arguments are not those of the time when they were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_execution.py::test_later_arguments_do_not_change_an_earlier_append")
class TakesNoSnapshot(PythonDriver):
    """The inferences of a list are recorded when it is closed, with the arguments of that moment."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._late: dict[int, list[tuple[Handle, ...]]] = {}

    def ze_command_list_append_graph_execute(
        self, command_list: Handle, graph: Handle, query: Handle = None, *events: Any
    ) -> ZeResult:
        self._late.setdefault(id(command_list), []).append((graph, query, *events[:1]))
        return ZeResult.SUCCESS

    def ze_command_list_close(self, command_list: Handle) -> ZeResult:
        for arguments in self._late.pop(id(command_list), []):
            super().ze_command_list_append_graph_execute(command_list, *arguments)
        return super().ze_command_list_close(command_list)


@caught_by("test_execution.py::test_unset_argument_is_uninitialized[1]")
class ForgetsToCheckArguments(PythonDriver):
    """An argument that was not set is filled with the first one that was."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._first: dict[int, Pointer] = {}

    def ze_graph_set_argument_value(self, graph: Handle, index: int, value: Pointer) -> ZeResult:
        self._first.setdefault(id(graph), value)
        return super().ze_graph_set_argument_value(graph, index, value)

    def ze_command_list_append_graph_execute(
        self, command_list: Handle, graph: Handle, query: Handle = None, *events: Any
    ) -> ZeResult:
        result = super().ze_command_list_append_graph_execute(command_list, graph, query, *events)
        if result == ZeResult.ERROR_UNINITIALIZED and id(graph) in self._first:
            return ZeResult.SUCCESS
        return result
