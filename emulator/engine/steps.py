"""What a decoded command is: a call, and what the call may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from softnpu.emulator.interface.commands import MemoryAt

Step = Callable[[], object]
"""One command. None: done. `BLOCKED` or `LOADING`: it cannot go on yet and must be called again.

Anything else is `Rest`: a long command, of which nothing has been done yet.
"""
Rest = Iterator[None]
"""A long command in parts: it is done when the iterator ends. Between two parts others may run."""

BLOCKED = object()
"""It waits for an event: the watchdog looks on."""
LOADING = object()
"""It waits for an image that is being loaded again after an engine reset."""
AGAIN = object()
"""It made room for somebody with the better claim, and goes on when its turn comes."""
GIVEN_UP = object()
"""It was cancelled or aborted, or its queue is gone: it was cut off, and its outputs are void."""


NOTED_EVERY = 64
"""Commands after which it is noted how far a list came in which one may run twice."""


class Turn(Protocol):
    """What a step may ask of the submission that runs."""

    def is_cancelled(self) -> bool:
        """Whether the submission must end now; reads what the supervisor has sent.

        Once True it stays True until the submission has ended: the decision is kept, not read again.
        """
        ...

    def look_for_more(self) -> bool:
        """`is_cancelled`, asked while an inference runs beside which others may run; begins them."""
        ...

    def pending_effect(self) -> int | None:
        """What an engine that died noted for this very step of this submission; None if it noted nothing."""
        ...

    def note_effect(self, value: int) -> None:
        """Note `value` for this step in memory that outlives the engine, before the effect begins.

        The step is then finished exactly once: by this engine, or by the next one, which finds the value.
        """
        ...

    def note_event(self, at: MemoryAt, changes: int) -> None:
        """Note, before this step changes the event at `at`, how often commands have changed it so far.

        An engine that follows a dead one compares, before it runs anything, and passes over the step if the
        change has happened.
        """
        ...

    def count_staged(self, size: int) -> None:
        """Count bytes that were copied because a tensor could not be used in place."""
        ...
