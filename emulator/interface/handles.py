"""64-bit handles: kind (8 bits), generation (24 bits), slot (32 bits).

A slot is reused only with the next generation, and never after its last one: a stale handle is always
detected and never names another object. Handle 0 is the null handle. Each session has its own tables, so
another session's handle names nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Generic, TypeVar

import msgspec

from softnpu.emulator.interface.result import ZeResult, refuse

Handle = Annotated[int, msgspec.Meta(title="handle")]
"""A handle in a message."""
NULL_HANDLE = 0
_GENERATIONS = 1 << 24

T = TypeVar("T")


class HandleKind(enum.IntEnum):
    """The kind of object that a handle names; the top byte of the handle."""

    CONTEXT = 1
    MEMORY = 2
    QUEUE = 3
    GRAPH = 4
    STREAM = 5


def describe(handle: int) -> str:
    """Return a handle as text for messages: `graph 0x0400000100000003`."""
    try:
        kind = HandleKind(handle >> 56).name.lower()
    except ValueError:
        kind = "handle"
    return f"{kind} {handle:#018x}"


class HandleTable(Generic[T]):
    """The objects of one kind and their handles; at most `limit` live at once."""

    def __init__(self, kind: HandleKind, limit: int, generations: int = _GENERATIONS) -> None:
        self._kind = kind
        self._limit = limit
        self._last_generation = generations - 1
        self._objects: list[T | None] = []
        self._generations: list[int] = []
        self._free: list[int] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[T]:
        return iter([obj for obj in self._objects if obj is not None])

    def items(self) -> Iterator[tuple[int, T]]:
        """Iterate over a snapshot of handles and their objects."""
        pairs = zip(self._generations, self._objects, strict=True)
        return iter(
            [(self._handle(gen, slot), obj) for slot, (gen, obj) in enumerate(pairs) if obj is not None]
        )

    def check_room(self) -> None:
        """Refuse with `ERROR_OUT_OF_HOST_MEMORY` when the table is at its limit."""
        if self._live >= self._limit:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                f"{self._kind.name.lower()} handles",
                found=f"{self._live} live in this session",
                expected=f"at most {self._limit}",
                hint="destroy objects that are no longer used",
            )

    def add(self, obj: T) -> int:
        """Store `obj` and return its handle."""
        self.check_room()
        return self._store(obj)

    def _store(self, obj: T) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._objects)
            self._objects.append(None)
            self._generations.append(0)
        # generation 0 is never issued: an all-zero handle body is always invalid
        generation = self._generations[slot] + 1
        self._generations[slot] = generation
        self._objects[slot] = obj
        self._live += 1
        return self._handle(generation, slot)

    def get(self, handle: int) -> T:
        """Return the object of `handle`. Refuses: `ERROR_INVALID_NULL_HANDLE`, `ERROR_INVALID_ARGUMENT`."""
        return self._lookup(handle)[1]

    def pop(self, handle: int) -> T:
        """Remove and return the object of `handle`; its slot may be reused with a new generation."""
        slot, obj = self._lookup(handle)
        self._objects[slot] = None
        if self._generations[slot] < self._last_generation:
            self._free.append(slot)
        self._live -= 1
        return obj

    def _handle(self, generation: int, slot: int) -> int:
        return (int(self._kind) << 56) | (generation << 32) | slot

    def _lookup(self, handle: int) -> tuple[int, T]:
        kind = self._kind.name.lower()
        if handle == NULL_HANDLE:
            raise refuse(
                ZeResult.ERROR_INVALID_NULL_HANDLE,
                kind,
                found="null handle",
                expected=f"a live {kind} handle",
            )
        slot, generation = handle & 0xFFFFFFFF, (handle >> 32) & 0xFFFFFF
        if handle >> 56 != self._kind or slot >= len(self._objects):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(handle),
                found="unknown handle",
                expected=f"a live {kind} handle",
            )
        obj = self._objects[slot]
        if obj is None or generation != self._generations[slot]:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(handle),
                found=f"stale handle: destroyed, slot {slot} is at generation {self._generations[slot]}",
                expected=f"a live {kind} handle",
            )
        return slot, obj
