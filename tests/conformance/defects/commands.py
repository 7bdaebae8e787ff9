"""Commands that do almost what they should."""

from __future__ import annotations

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.commands import Handles
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.defects.defect import Defect
from tests.conformance.python_driver import PythonDriver


class CopiesOneByteLess(PythonDriver):
    """The last byte of a copy is missing."""

    def ze_command_list_append_memory_copy(
        self,
        command_list: Handle,
        target: Pointer,
        source: Pointer,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult:
        less = max(0, size - 1)
        return super().ze_command_list_append_memory_copy(
            command_list, target, source, less, signal_event, num_wait_events, wait_events
        )


class CopiesFromTheStart(PythonDriver):
    """An interior source pointer is taken for the start of its allocation."""

    def ze_command_list_append_memory_copy(
        self,
        command_list: Handle,
        target: Pointer,
        source: Pointer,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult:
        starts = [at for at in self._kept if at <= source and source - at < 4096]
        return super().ze_command_list_append_memory_copy(
            command_list,
            target,
            max(starts, default=source),
            size,
            signal_event,
            num_wait_events,
            wait_events,
        )


class FillsWithOneByte(PythonDriver):
    """Only the first byte of a fill pattern is used."""

    def ze_command_list_append_memory_fill(
        self,
        command_list: Handle,
        target: Pointer,
        pattern: bytes | None,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult:
        short = pattern[:1] if pattern is not None and len(pattern) in (2, 4) else pattern
        return super().ze_command_list_append_memory_fill(
            command_list, target, short, size, signal_event, num_wait_events, wait_events
        )


DEFECTS = (
    Defect(
        "copy_one_byte_short",
        CopiesOneByteLess,
        "test_commands.py",
        "copy_moves",
        "test_copy_moves_every_byte[4097]",
    ),
    Defect(
        "interior_pointer_ignored",
        CopiesFromTheStart,
        "test_commands.py",
        "interior",
        "test_copy_takes_interior_pointers",
    ),
    Defect(
        "fill_pattern_cut",
        FillsWithOneByte,
        "test_commands.py",
        "fill_repeats",
        "test_fill_repeats_its_pattern[0-\\x01\\x02]",
    ),
)
