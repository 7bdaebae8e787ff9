"""Build logs: the compiler's messages for a graph, or the reason for its failure.

Version 1 returns the log of the calling thread's last creation, version 2 the log of a given creation.
"""

from __future__ import annotations

import threading

from softnpu.driver.errors import ZeError, error
from softnpu.emulator.interface.result import ZeResult

_thread = threading.local()
_CACHE_STATUS = "ZE DynamicCaching cache_status_t: "


class BuildLog:
    """`ze_graph_build_log_handle_t`: passed to create 3, which fills it even if it fails."""

    def __init__(self) -> None:
        self._text = ""
        self._alive = True

    def get_string(self) -> str:
        """`pfnBuildLogGetString2`. Raises `ZeError` with INVALID_NULL_HANDLE after `destroy`."""
        self._check("pfnBuildLogGetString2")
        return self._text

    @property
    def size(self) -> int:
        """Bytes of the text including its NUL: what the call in C returns when it is given no buffer."""
        self._check("pfnBuildLogGetString2")
        return len(self._text.encode()) + 1

    def destroy(self) -> None:
        """`pfnBuildLogDestroy`; idempotent."""
        self._alive = False

    def _set(self, text: str) -> None:
        """Store the text; called by the creation that owns this log."""
        self._text = text

    def _check(self, call: str) -> None:
        if not self._alive:
            raise error(
                call,
                ZeResult.ERROR_INVALID_NULL_HANDLE,
                "build log",
                found="used after it was destroyed",
                expected="a live one",
            )


def failure_text(failure: ZeError) -> str:
    """Return the log of a failed creation."""
    return f"{failure.info.name}: {failure.info}\n"


def set_last_log(text: str) -> None:
    """Keep this as the calling thread's last log."""
    _thread.text = text


def cache_status(log: str) -> str:
    """Return the cache line of a log (stored or found); empty if it has none."""
    return next((line for line in log.splitlines(keepends=True) if line.startswith(_CACHE_STATUS)), "")


def last_log() -> str:
    """Return this thread's last log: the failure of its last creation, else its cache status."""
    text: str = getattr(_thread, "text", "")
    return text
