"""Handles that never die, leaked or miscounted memory, graphs with other arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Answer, Handle, HostMemDesc, Pointer
from tests.conformance.defects.defect import caught_by, wrong_call
from tests.conformance.python_driver import PythonDriver

_PAGE = 4096


@wrong_call("test_arguments.py::test_destroyed_object_is_refused[fence]", "ze_fence_destroy")
def destroys_twice(_driver: Any, right: Any, fence: Any) -> Any:
    """Destroying a fence twice is silently accepted."""
    result = right(fence)
    stale = fence is not None and result == ZeResult.ERROR_INVALID_NULL_HANDLE
    return ZeResult.SUCCESS if stale else result


@wrong_call("test_arguments.py::test_destroyed_object_is_refused[fence]", "ze_fence_query_status")
def accepts_stale_fences(_driver: Any, right: Any, fence: Any) -> Any:
    """A destroyed fence can still be queried: it says that it is not ready."""
    result = right(fence)
    stale = fence is not None and result == ZeResult.ERROR_INVALID_NULL_HANDLE
    return ZeResult.NOT_READY if stale else result


@wrong_call("test_leaks.py::test_created_and_destroyed_objects_are_gone[queue]", "ze_command_queue_destroy")
def leaks_queues(_driver: Any, _right: Any, queue: Any) -> Any:
    """A destroyed queue stays in the daemon."""
    return ZeResult.ERROR_INVALID_NULL_HANDLE if queue is None else ZeResult.SUCCESS


@wrong_call(
    "test_contexts.py::test_destroying_a_context_gives_back_what_was_created_in_it", "ze_context_destroy"
)
def leaks_contexts(_driver: Any, _right: Any, context: Any) -> Any:
    """A destroyed context stays in the daemon, with all its objects."""
    return ZeResult.ERROR_INVALID_NULL_HANDLE if context is None else ZeResult.SUCCESS


@wrong_call("test_memory.py::test_free_gives_bytes_and_object_back", "ze_mem_free")
def frees_nothing(driver: Any, right: Any, context: Any, pointer: Pointer) -> Any:
    """`zeMemFree` reports success and keeps the memory."""
    return ZeResult.SUCCESS if pointer in driver._kept else right(context, pointer)


@wrong_call("test_memory_query.py::test_size_is_not_rounded_to_pages", "ze_graph_query_context_memory")
def counts_pages(_driver: Any, right: Any, *arguments: Any) -> Any:
    """The memory query counts whole pages."""
    result, use = right(*arguments)
    return Answer(result, use and use._replace(allocated=-(-use.allocated // _PAGE) * _PAGE))


@wrong_call("test_memory.py::test_freed_pointer_is_unknown", "ze_mem_get_alloc_properties")
def knows_freed_memory(driver: Any, right: Any, context: Any, pointer: Pointer, *more: Any) -> Any:
    """A freed pointer is described like any other."""
    answer = right(context, pointer, *more)
    if answer.result == ZeResult.ERROR_NOT_AVAILABLE:
        return right(context, driver.ze_mem_alloc_host(context, HostMemDesc(), 64).value, *more)
    return answer


@wrong_call("test_errors.py::test_calls_have_their_documented_results", "ze_mem_free")
def frees_in_any_context(driver: Any, right: Any, context: Any, pointer: Pointer) -> Any:
    """Memory can be freed through a foreign context."""
    result = right(context, pointer)
    return ZeResult.SUCCESS if pointer in driver._kept else result


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


@wrong_call(
    "test_execution.py::test_unset_argument_is_uninitialized[1]", "ze_command_list_append_graph_execute"
)
def forgets_to_check_arguments(_driver: Any, right: Any, *arguments: Any) -> Any:
    """An inference whose arguments were not all set is silently accepted."""
    result = right(*arguments)
    return ZeResult.SUCCESS if result == ZeResult.ERROR_UNINITIALIZED else result
