"""Shared parts of the adapter: handles and pointers for C, results for the suite."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, TypeVar

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Answer, Handle
from tests.conformance.native_driver.library import GRAPH_FUNCTIONS, PROFILING_FUNCTIONS, Table, function

T = TypeVar("T")


def handle(value: Any) -> c_void_p:
    """Return a handle of the suite, None for the null handle."""
    return c_void_p(value)


def pointer(structure: Any, out: bool = True) -> Any:
    """Return the address of a structure; null without one, or without outputs."""
    return None if structure is None or not out else ctypes.byref(structure)


def array(handles: Sequence[Any] | None) -> Any:
    """Return an array of handles; null without one."""
    return None if handles is None else (c_void_p * max(1, len(handles)))(*handles)


def events_of(signal: Any = None, count: int = 0, waits: Sequence[Any] | None = None) -> tuple[Any, Any, Any]:
    """Return the events that an append signals and waits for."""
    return handle(signal), c_uint32(count), array(waits)


def call(name: str, *arguments: Any) -> ZeResult:
    """Call an exported function."""
    return ZeResult(function(name)(*arguments))


def plain(name: str, *kinds: Any) -> Callable[..., ZeResult]:
    """Return a call without outputs: a handle, then arguments of these C types."""

    def method(_self: object, first: Handle, *arguments: Any) -> ZeResult:
        return call(name, handle(first), *(kind(value) for kind, value in zip(kinds, arguments, strict=True)))

    return method


def slot(table: str, function: str) -> Callable[[Session, Handle], ZeResult]:
    """Return an extension's call without outputs that takes one handle."""
    return lambda session, first: ZeResult(getattr(getattr(session, table), function)(handle(first)))


def answer(result: int, value: Callable[[], T]) -> Answer[T]:
    """Return the outputs of a call, if it succeeded."""
    code = ZeResult(result)
    return Answer(code, value() if code == ZeResult.SUCCESS else None)


def made(name: str, out: bool, *arguments: Any) -> Answer[Any]:
    """Make a call whose last argument receives a handle or an address."""
    slot = c_void_p()
    result = function(name)(*arguments, ctypes.byref(slot) if out else None)
    return answer(result, lambda: slot.value)


def properties(name: str, structure: ctypes.Structure, out: bool, *arguments: Any) -> ZeResult:
    """Make a call whose last argument is a structure to be filled."""
    return call(name, *arguments, pointer(structure, out))


def told(
    name: str, structure: Callable[[], Any], read: Callable[[Any], T], kinds: Sequence[Any] = ()
) -> Callable[..., Answer[T]]:
    """Return a call on handles, or a handle and values of these kinds, that fills a structure or a number."""

    def method(_self: object, first: Handle, *arguments: Any, out: bool = True) -> Answer[T]:
        struct = structure()
        values = [kind(value) for kind, value in zip(kinds, arguments, strict=True)]
        result = call(name, handle(first), *values, pointer(struct, out))
        return answer(result, lambda: read(struct))

    return method


def listed(name: str, kind: Any, read: Callable[[Any], T]) -> Callable[..., Answer[list[T]]]:
    """Return a call on a handle that returns an array."""

    def method(_self: object, first: Handle, out: bool = True) -> Answer[list[T]]:
        result, struct = each(name, kind, out, handle(first))
        return answer(result, lambda: [read(entry) for entry in struct])

    return method


def creation(name: str, structure: Callable[[Any], Any]) -> Callable[..., Answer[Any]]:
    """Return a call that creates an object from handles and a descriptor."""

    def method(_self: object, *arguments: Any, out: bool = True) -> Answer[Any]:
        *handles, desc = arguments
        given = None if desc is None else structure(desc)
        return made(name, out, *map(handle, handles), pointer(given))

    return method


def each(name: str, kind: Any, out: bool, *arguments: Any) -> tuple[ZeResult, list[Any]]:
    """Make the two calls that return an array: for the count, then for the entries."""
    count = c_uint32()
    result = call(name, *arguments, ctypes.byref(count) if out else None, None)
    if result != ZeResult.SUCCESS:
        return result, []
    entries = (kind * max(1, count.value))()
    result = call(name, *arguments, ctypes.byref(count), entries)
    return result, list(entries[: count.value])


def text(function: Any, size: type[Any], *arguments: Any) -> Answer[tuple[int, str]]:
    """Make the two calls that return a text: its size with the NUL, then the text."""
    needed = size()
    result = ZeResult(function(*arguments, ctypes.byref(needed), None))
    if result != ZeResult.SUCCESS:
        return Answer(result)
    buffer = ctypes.create_string_buffer(max(1, needed.value))
    given = size(needed.value)
    result = ZeResult(function(*arguments, ctypes.byref(given), buffer))
    return answer(result, lambda: (needed.value, buffer.value.decode()))


def data(function: Any, size: type[Any], *arguments: Any) -> Answer[bytes]:
    """Make the two calls that return bytes."""
    needed = size()
    result = ZeResult(function(*arguments, ctypes.byref(needed), None))
    if result != ZeResult.SUCCESS:
        return Answer(result)
    buffer = ctypes.create_string_buffer(max(1, needed.value))
    result = ZeResult(function(*arguments, ctypes.byref(needed), buffer))
    return answer(result, lambda: buffer.raw[: needed.value])


U32, U64, SIZE = c_uint32, c_uint64, c_size_t


class Session:
    """The driver of this process, and the contexts created through this adapter."""

    def __init__(self) -> None:
        super().__init__()
        self._contexts: set[int] = set()
        self._tables: dict[str, Table] = {}

    def _table(self, name: str, functions: list[str]) -> Table:
        if name not in self._tables:
            drivers = each_driver()
            address = c_void_p()
            result = call(
                "zeDriverGetExtensionFunctionAddress",
                handle(drivers[0]),
                name.encode(),
                ctypes.byref(address),
            )
            assert result == ZeResult.SUCCESS, f"{name}: {result!r}"
            assert address.value is not None
            self._tables[name] = Table(address.value, functions)
        return self._tables[name]

    @property
    def graphs(self) -> Table:
        return self._table("ZE_extension_graph", GRAPH_FUNCTIONS)

    @property
    def profiling(self) -> Table:
        return self._table("ZE_extension_profiling_data", PROFILING_FUNCTIONS)

    @property
    def queues(self) -> Table:
        return self._table("ZE_extension_command_queue_npu", ["SetWorkloadType"])


def each_driver() -> list[int]:
    """Return the drivers of this process."""
    result, drivers = each("zeDriverGet", c_void_p, True)
    assert result == ZeResult.SUCCESS, f"zeDriverGet: {result!r}"
    return drivers
