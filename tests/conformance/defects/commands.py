"""Commands and lists that do almost the right thing."""

from __future__ import annotations

from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.defects.defect import wrong_call

COPY = "ze_command_list_append_memory_copy"
EXECUTE = "ze_command_queue_execute_command_lists"


@wrong_call("test_commands.py::test_copy_moves_every_byte", COPY)
def copies_one_byte_less(
    _driver: Any, right: Any, entry: Any, to: int, source: int, size: int, *events: Any
) -> Any:
    """The last byte of a copy is missing."""
    return right(entry, to, source, max(0, size - 1), *events)


@wrong_call("test_commands.py::test_copy_takes_interior_pointers", COPY)
def copies_from_the_start(driver: Any, right: Any, entry: Any, to: int, source: int, *more: Any) -> Any:
    """An interior source pointer is taken for the start of its allocation."""
    starts = [at for at in driver._kept if at <= source and source - at < 4096]
    return right(entry, to, max(starts, default=source), *more)


@wrong_call("test_commands.py::test_command_waits_for_its_events_and_signals_another[copy]", COPY)
def ignores_wait_events_of_copies(
    _driver: Any, right: Any, entry: Any, to: int, source: int, size: int, *events: Any
) -> Any:
    """A copy does not wait for its events."""
    return right(entry, to, source, size, *events[:1])


@wrong_call("test_commands.py::test_fill_repeats_its_pattern", "ze_command_list_append_memory_fill")
def fills_with_one_byte(
    _driver: Any, right: Any, entry: Any, to: int, pattern: bytes | None, *more: Any
) -> Any:
    """Only the first byte of a fill pattern is used."""
    short = pattern[:1] if pattern is not None and len(pattern) in (2, 4) else pattern
    return right(entry, to, short, *more)


@wrong_call("test_command_lists.py::test_reset_opens_and_empties_a_list", "ze_command_list_reset")
def reset_keeps_commands(_driver: Any, right: Any, entry: Any) -> Any:
    """Reset opens a list again, with the commands still in it."""
    kept = list(getattr(entry, "_commands", ()))
    result = right(entry)
    if result == ZeResult.SUCCESS:
        entry._commands.extend(kept)
    return result


@wrong_call(
    "test_command_lists.py::test_append_after_close_is_not_available", "ze_command_list_append_barrier"
)
def appends_after_close(_driver: Any, right: Any, *arguments: Any) -> Any:
    """A closed list silently ignores a command, and reports success."""
    result = right(*arguments)
    return ZeResult.SUCCESS if result == ZeResult.ERROR_NOT_AVAILABLE else result


@wrong_call("test_command_lists.py::test_unclosed_list_is_uninitialized", EXECUTE)
def executes_open_lists(driver: Any, right: Any, queue: Any, count: int, lists: Any, *fence: Any) -> Any:
    """An open list is closed when it is executed."""
    for entry in lists or ():
        driver.ze_command_list_close(entry)
    return right(queue, count, lists, *fence)


@wrong_call("test_command_lists.py::test_closed_list_runs_many_times_without_reset", EXECUTE)
def runs_once(driver: Any, right: Any, queue: Any, count: int, lists: Any, *fence: Any) -> Any:
    """A list runs once; executing it again does nothing."""
    fresh = [entry for entry in (lists or ())[:count] if id(entry) not in driver.noted]
    driver.noted.update((id(entry), True) for entry in fresh)
    return right(queue, len(fresh), fresh, *fence) if fresh or not lists else ZeResult.SUCCESS


@wrong_call("test_queues.py::test_device_sync_queue_runs_lists_in_order", EXECUTE)
def runs_lists_backwards(_driver: Any, right: Any, queue: Any, count: int, lists: Any, *fence: Any) -> Any:
    """The lists of one submission run in the wrong order."""
    return right(queue, count, lists and list(reversed(lists)), *fence)


@wrong_call("test_fences.py::test_fence_waits_for_all_lists_of_its_submission", EXECUTE)
def runs_only_the_first_list(_driver: Any, right: Any, queue: Any, count: int, *more: Any) -> Any:
    """Only the first list of a submission runs."""
    return right(queue, min(count, 1), *more)
