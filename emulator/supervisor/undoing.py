"""Tell first, commit then: what a request has done so far is undone if a later part of it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager


@contextmanager
def undoing() -> Iterator[ExitStack]:
    """Undo by the callbacks of the stack, the last one first, if the block raises; else forget them."""
    with ExitStack() as undo:
        yield undo
        undo.pop_all()


def close_all(fds: list[int]) -> None:
    """Close the descriptors, and forget them."""
    while fds:
        os.close(fds.pop())


def move(source: list[int], into: list[int], first: int = 0) -> None:
    """Have descriptors, from number `first` on, another owner: at no moment have they two, or none."""
    into[:], source[:] = into + source[first:], source[:first]


def duplicates(fds: Sequence[int]) -> list[int]:
    """Duplicates of all descriptors, or `OSError` and none."""
    made: list[int] = []
    with undoing() as undo:
        undo.callback(close_all, made)
        for fd in fds:
            made.append(os.dup(fd))
    return made
