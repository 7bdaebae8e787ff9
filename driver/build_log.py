"""Build logs: messages of the compiler for a graph, or why there is none.

Version 1 asks for the last creation of the calling thread, version 2 for the log of one creation.
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
        """Bytes of the text with its NUL, as the first of the two calls returns it."""
        self._check("pfnBuildLogGetString2")
        return len(self._text.encode()) + 1

    def destroy(self) -> None:
        """`pfnBuildLogDestroy`; harmless when repeated."""
        self._alive = False

    def _set(self, text: str) -> None:
        """Filled by the creation that it belongs to."""
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
    """The log of a creation that failed."""
    return f"{failure.info.name}: {failure.info}\n"


def note_log(text: str) -> None:
    """Keep the log of a creation for the calling thread, in place of the one before."""
    _thread.text = text


def cache_status(log: str) -> str:
    """The line on the cache of a log: stored or found; empty without one."""
    return next((line for line in log.splitlines(keepends=True) if line.startswith(_CACHE_STATUS)), "")


def last_log() -> str:
    """The log of the last creation of this thread if it failed, else what it says of the cache."""
    text: str = getattr(_thread, "text", "")
    return text
