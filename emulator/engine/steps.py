"""What a decoded command is: a call, and what the call may answer."""

from __future__ import annotations

from collections.abc import Callable

Step = Callable[[], object]
"""One command. It returns `BLOCKED` or `LOADING` when it cannot go on yet and must be called again."""

BLOCKED = object()
"""It waits for an event: the watchdog looks on."""
LOADING = object()
"""It waits for an image that is being loaded again after an engine reset."""
