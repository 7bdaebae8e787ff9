"""The arenas of a context that may have room, by size: none that is full is looked at again and again."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from softnpu.emulator.common.range_allocator import RangeAllocator


class Arena(Protocol):
    """A segment as seen here. `control`: for rings, fences and events."""

    number: int
    ranges: RangeAllocator
    control: bool


A = TypeVar("A", bound=Arena)


class OpenArenas(Generic[A]):
    """Arenas by class of size, a power of two; `least` and `most` bytes are placed in them.

    One that had no room for an allocation leaves its class, and comes back when enough is freed in it: every
    look in vain is paid for by what was freed.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._classes = range(least.bit_length(), most.bit_length() + 1)
        self._open: dict[tuple[bool, int], dict[int, A]] = {}

    def place(self, size: int, alignment: int, control: bool) -> tuple[A, int] | None:
        """Allocate in an arena with room; return it and the offset."""
        arenas = self._open.get((control, (size + alignment - self._least).bit_length()), {})
        while arenas:
            number, arena = next(iter(arenas.items()))
            offset = arena.ranges.allocate(size, alignment)
            if offset is not None:
                return arena, offset
            del arenas[number]
        return None

    def offer(self, arena: A, room: int) -> None:
        """Note that `room` bytes in a row are free in an arena."""
        for size in self._classes[: max(0, room.bit_length() - self._classes.start + 1)]:
            self._open.setdefault((arena.control, size), {})[arena.number] = arena

    def drop(self, arena: A) -> None:
        """Forget an arena, which ends."""
        for size in self._classes:
            self._open.get((arena.control, size), {}).pop(arena.number, None)
