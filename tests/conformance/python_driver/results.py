"""Conversion of exceptions to results, and a C function's checks before it examines an object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

import msgspec

from softnpu.driver import Driver
from softnpu.driver.errors import ZeError, error
from softnpu.driver.event import Event
from softnpu.driver.handle import Handle
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Answer

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
_CALL = "conformance adapter"


def results(method: Callable[P, bool | None]) -> Callable[P, ZeResult]:
    """Wrap a call without outputs. `False` is NOT_READY, as returned by the driver's waits."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> ZeResult:
        try:
            value = method(*args, **kwargs)
        except ZeError as failure:
            return ZeResult(failure.result)
        return ZeResult.NOT_READY if value is False else ZeResult.SUCCESS

    return call


def answers(method: Callable[P, T]) -> Callable[P, Answer[T]]:
    """Wrap a call with outputs."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        try:
            return Answer(ZeResult.SUCCESS, method(*args, **kwargs))
        except ZeError as failure:
            return Answer(ZeResult(failure.result))

    return call


def live(handle: object, kind: type[T]) -> T:
    """Return the object behind a handle; INVALID_NULL_HANDLE for the null handle."""
    if handle is None:
        raise error(_CALL, ZeResult.ERROR_INVALID_NULL_HANDLE, kind.__name__, found="null handle")
    assert isinstance(handle, kind), f"{handle!r} is no {kind.__name__}"
    return handle


def given(*pointers: object) -> None:
    """Raise INVALID_NULL_POINTER unless every one of them is given (not None, 0 or False)."""
    if any(pointer is None or pointer is False or pointer == 0 for pointer in pointers):
        raise error(_CALL, ZeResult.ERROR_INVALID_NULL_POINTER, "argument", found="null pointer")


def method(kind: type[object], name: str) -> Callable[..., ZeResult]:
    """Return a call without outputs that is one method of one object."""

    def call(_self: object, handle: object, *arguments: object) -> bool | None:
        return cast("bool | None", getattr(live(handle, kind), name)(*arguments))

    return results(call)


def destruction(call: str, kind: type[Handle]) -> Callable[[Keeper, object], ZeResult]:
    """Return a call that destroys an object."""
    return results(lambda keeper, handle: keeper.destroy(call, handle, kind))


def told(kind: type[K], read: Callable[..., T]) -> Callable[..., Answer[T]]:
    """Return a call that queries one object: `read` returns the outputs."""

    @answers
    def call(_self: object, handle: object, *arguments: object, out: bool = True) -> T:
        this = live(handle, kind)
        given(out)
        return read(this, *arguments)

    return call


def creation(kinds: Sequence[type[object]], make: Callable[..., object]) -> Callable[..., Answer[object]]:
    """Return a call that creates an object from handles of these kinds, a descriptor, and more arguments."""

    @answers
    def call(keeper: Keeper, *arguments: object, out: bool = True) -> object:
        count = len(kinds)
        handles = [live(handle, kind) for handle, kind in zip(arguments[:count], kinds, strict=True)]
        given(arguments[count] is not None, out)
        return keeper.keep(make(*handles, *arguments[count:]))

    return call


def counted(
    count: int, array: Sequence[object] | None, kind: type[T], without: ZeResult = ZeResult.ERROR_INVALID_SIZE
) -> list[T]:
    """Return `count` handles of an array; `without` is the result of a count without an array."""
    if count and array is None:
        raise error(_CALL, without, "array", found="null pointer")
    return [live(entry, kind) for entry in (array or ())[:count]]


def events_of(
    signal: object = None, count: int = 0, waits: Sequence[object] | None = None
) -> tuple[Event | None, list[Event]]:
    """Return the events that an append signals and waits for."""
    waited = counted(count, waits, Event)
    return None if signal is None else live(signal, Event), waited


def convert(kind: type[T], record: msgspec.Struct) -> T:
    """Convert the driver's record to the suite's (a dataclass), by field names."""
    return kind(**{name: getattr(record, name) for name in inspect.signature(kind).parameters})


class Keeper:
    """Keeps the driver's objects until they are destroyed, as a C driver does."""

    _driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, object] = {}

    def keep(self, thing: T) -> T:
        self._kept[id(thing)] = thing
        return thing

    def destroy(self, call: str, handle: object, kind: type[Handle]) -> None:
        """Destroy; the driver's own check refuses repeated destruction."""
        thing = live(handle, kind)
        thing._check(call)
        thing.destroy()
        self._kept.pop(id(thing), None)
