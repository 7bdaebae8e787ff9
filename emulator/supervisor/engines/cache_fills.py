"""Filling the engine cache: one process per image, after the clients waiting for it have continued.

An engine can read the cache but not write it, because a model may have compromised the engine. It reports a
missing image; the process receives the descriptors from the supervisor.
"""

from __future__ import annotations

import logging
from collections import deque

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.children.child import Child
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.parked_files import borrowed
from softnpu.emulator.supervisor.reactor import ChildShare, Reactor, Timer
from softnpu.emulator.supervisor.undoing import duplicates

log = logging.getLogger(__name__)

_DELAY_S = 1.0  # the first inferences have priority
_DEADLINE_S = 120.0
_MOST_WAITING = 4


class CacheFills:
    """One process at a time for the images of one engine."""

    def __init__(self, reactor: Reactor, share: ChildShare) -> None:
        self._reactor = reactor.owned("which leaves an image out of the cache", self._broken, share)
        self._waiting: deque[tuple[link.ImageLoad, list[int], int]] = deque()
        self._timer: Timer | None = None
        self._child: Child | None = None

    def add(self, message: link.ImageLoad, fds: list[int], owner: int) -> None:
        """Queue an image for the cache. If there are too many, or no descriptors, it is left to a later
        load.

        `owner`: the user whose descriptors they are.
        """
        self._reactor.guarded(self._add)(message, fds, owner)

    def _add(self, message: link.ImageLoad, fds: list[int], owner: int) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            return
        try:
            self._waiting.append((message, duplicates(fds), owner))
        except OSError as error:
            log.warning("engine cache: image %d is not stored: %s", message.image, error)
        self._start_later()

    def close(self, timeout_s: float) -> None:
        """End the process, and forget what waits."""
        self._cancel_timer()
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.close(timeout_s)
        while self._waiting:
            _, fds, owner = self._waiting.popleft()
            close_untrusted(fds, owner)

    def _start_later(self) -> None:
        if self._timer is None and self._child is None and self._waiting:
            self._timer = self._reactor.after(_DELAY_S, self._start)

    def _start(self) -> None:
        self._timer = None
        message, fds, owner = self._waiting.popleft()
        try:
            with borrowed(fds, owner) as files:
                self._child = Child(ChildProgram.CACHE_FILL, self._reactor, _ignore, self._ended)
                self._timer = self._reactor.after(_DEADLINE_S, self._child.kill)
                self._child.post(0, message, files)
        except (OSError, MemoryError) as error:
            log.warning("engine cache: image %d is not stored: %s", message.image, error)
            self._start_later()
        finally:
            close_untrusted(fds, owner)

    def _broken(self, _info: ErrorInfo) -> None:
        """Go on with the next image after an internal error."""
        if self._child is not None and self._child.alive:
            self._child.kill()
            return
        self._child = None
        self._cancel_timer()
        self._start_later()

    def _ended(self, how: str) -> None:
        self._cancel_timer()
        self._child = None
        if how != _WELL:
            log.warning("engine cache: an image is not stored: the process %s", how)
        self._start_later()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


_WELL = "ended with exit code 0"


def _ignore(_request: int, _body: memoryview, fds: list[int]) -> None:
    """It answers nothing."""
    close_untrusted(fds)
