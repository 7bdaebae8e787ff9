"""Pools of queries: memory for `count` of them, by index."""

from __future__ import annotations

from typing import ClassVar

from softnpu.driver.context_base import ContextBase
from softnpu.driver.errors import ZeError, check_type, error, invalid_argument, invalid_size
from softnpu.driver.handle import Handle
from softnpu.emulator.interface.result import ZeResult


class QueryPool(Handle):
    """Room for `count` queries; destroying a query frees its index."""

    _name: ClassVar[str]
    _destroy_call: ClassVar[str]

    def _check_count(self, call: str, count: int) -> None:
        """Raise `ZeError` with INVALID_SIZE for less than one query."""
        check_type(call, f"{self._name}, count", count, int)
        if count < 1:
            raise invalid_size(call, self._name, found=f"{count} queries", expected="at least 1")

    def _allocate(self, call: str, context: ContextBase, count: int, query_size: int) -> None:
        """Allocate the memory of all queries, and register the pool."""
        self.count = count
        self._query_size = query_size
        self._block = context._memory.allocate(call, "control", query_size * count)
        self._used: set[int] = set()
        self._connection = context._connection
        self._register(context, self._connection, self._used.clear)

    def _acquire(self, call: str, index: int) -> None:
        """Take an index. INVALID_ARGUMENT out of range, HANDLE_OBJECT_IN_USE if it is taken."""
        check_type(call, f"{self._name}, index", index, int)
        if not 0 <= index < self.count:
            expected = f"0 to {self.count - 1}"
            raise invalid_argument(call, self._name, found=f"index {index}", expected=expected)
        if index in self._used:
            raise self._in_use(call, f"index {index} has a query", "a free index")
        self._used.add(index)

    def destroy(self) -> None:
        """Destroy the pool. HANDLE_OBJECT_IN_USE while it has live queries."""
        if not self.destroyed and self._used:
            raise self._in_use(self._destroy_call, f"{len(self._used)} live queries", "none")
        super().destroy()

    def _in_use(self, call: str, found: str, expected: str) -> ZeError:
        result = ZeResult.ERROR_HANDLE_OBJECT_IN_USE
        hint = "destroy what uses it first"
        return error(call, result, self._name, found=found, expected=expected, hint=hint)

    def _drop_references(self) -> None:
        del self._block


class Query(Handle):
    """One query of a pool, which it keeps alive."""

    _pool: QueryPool

    def __init__(self, pool: QueryPool, index: int) -> None:
        self._pool = pool
        self._offset = index * pool._query_size
        self._register(pool, pool._connection, pool._used.discard, index)

    @property
    def _start(self) -> int:
        """Start of its memory in the segment."""
        return self._pool._block.offset + self._offset
