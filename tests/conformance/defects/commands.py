"""Commands that do almost what they should."""

from __future__ import annotations

from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_commands.py::test_copy_moves_every_byte")
class CopiesOneByteLess(PythonDriver):
    """The last byte of a copy is missing."""

    def ze_command_list_append_memory_copy(
        self, command_list: Handle, target: Pointer, source: Pointer, size: int, *events: Any
    ) -> ZeResult:
        less = max(0, size - 1)
        return super().ze_command_list_append_memory_copy(command_list, target, source, less, *events)


@caught_by("test_commands.py::test_copy_takes_interior_pointers")
class CopiesFromTheStart(PythonDriver):
    """An interior source pointer is taken for the start of its allocation."""

    def ze_command_list_append_memory_copy(
        self, command_list: Handle, target: Pointer, source: Pointer, size: int, *events: Any
    ) -> ZeResult:
        starts = [at for at in self._kept if at <= source and source - at < 4096]
        return super().ze_command_list_append_memory_copy(
            command_list,
            target,
            max(starts, default=source),
            size,
            *events,
        )


@caught_by("test_commands.py::test_fill_repeats_its_pattern")
class FillsWithOneByte(PythonDriver):
    """Only the first byte of a fill pattern is used."""

    def ze_command_list_append_memory_fill(
        self, command_list: Handle, target: Pointer, pattern: bytes | None, size: int, *events: Any
    ) -> ZeResult:
        short = pattern[:1] if pattern is not None and len(pattern) in (2, 4) else pattern
        return super().ze_command_list_append_memory_fill(command_list, target, short, size, *events)
