"""Rollback: the steps of a request are undone if a later one fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager


@contextmanager
def undoing() -> Iterator[ExitStack]:
    """Run the stack's callbacks, the last one first, if the block raises; else drop them."""
    with ExitStack() as undo:
        yield undo
        undo.pop_all()


def close_all(fds: list[int]) -> None:
    """Close the descriptors, and forget them."""
    while fds:
        os.close(fds.pop())


def move(source: list[int], into: list[int], first: int = 0) -> None:
    """Move descriptors, from index `first`, to another owner: at every moment they have exactly one."""
    into[:], source[:] = into + source[first:], source[:first]


def duplicates(fds: Sequence[int]) -> list[int]:
    """Duplicate all descriptors, or raise `OSError` and leave none."""
    made: list[int] = []
    with undoing() as undo:
        undo.callback(close_all, made)
        for fd in fds:
            made.append(os.dup(fd))
    return made
