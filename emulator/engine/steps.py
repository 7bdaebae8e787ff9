"""What a decoded command is: a call, and what the call may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
"""Nobody wants its end any more."""
