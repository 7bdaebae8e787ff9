"""Memory that is lost, or counted wrong."""

from __future__ import annotations

from pathlib import Path

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import AllocationProperties, Answer, Handle, MemoryUse, Pointer
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver

_PAGE = 4096


@caught_by("test_memory.py::test_free_gives_bytes_and_object_back")
class FreesNothing(PythonDriver):
    """`zeMemFree` says success and keeps the memory."""

    def ze_mem_free(self, context: Handle, pointer: Pointer) -> ZeResult:
        if pointer in self._kept:
            return ZeResult.SUCCESS
        return super().ze_mem_free(context, pointer)


@caught_by("test_memory_query.py::test_size_is_not_rounded_to_pages")
class CountsPages(PythonDriver):
    """The memory query counts whole pages."""

    def ze_graph_query_context_memory(
        self, context: Handle, kind: int, out: bool = True
    ) -> Answer[MemoryUse]:
        found = super().ze_graph_query_context_memory(context, kind, out)
        if found.value is None:
            return found
        pages = -(-found.value.allocated // _PAGE) * _PAGE
        return Answer(found.result, found.value._replace(allocated=pages))


@caught_by("test_memory.py::test_freed_pointer_is_unknown")
class KnowsFreedMemory(PythonDriver):
    """A freed pointer is still described as before."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._last: dict[Pointer, Answer[AllocationProperties]] = {}

    def ze_mem_free(self, context: Handle, pointer: Pointer) -> ZeResult:
        self._last[pointer] = self.ze_mem_get_alloc_properties(context, pointer)
        return super().ze_mem_free(context, pointer)

    def ze_mem_get_alloc_properties(
        self, context: Handle, pointer: Pointer, out: bool = True, export: int = 0
    ) -> Answer[AllocationProperties]:
        return self._last.get(pointer) or super().ze_mem_get_alloc_properties(context, pointer, out, export)


@caught_by("test_errors.py::test_calls_have_their_documented_results")
class FreesInAnyContext(PythonDriver):
    """Memory can be freed through a context that it does not belong to."""

    def ze_mem_free(self, context: Handle, pointer: Pointer) -> ZeResult:
        result = super().ze_mem_free(context, pointer)
        return ZeResult.SUCCESS if pointer in self._kept else result
