"""The event loop of the supervisor: descriptors and timers, one thread, callbacks that never block."""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_MEMORY_PAUSE_S = 0.01


class Timer:
    """A callback that is due once; `cancel` is harmless when repeated or late."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Reactor:
    """Call back when a descriptor is readable or writable, or when a time has come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._running = True

    def watch(
        self, fd: int, readable: Callable[[], None], writable: Callable[[], None] | None = None
    ) -> None:
        """Call `readable` (and `writable`, if given) whenever the descriptor is ready."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, (readable, writable))
        else:
            self._selector.register(fd, events, (readable, writable))

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless for a descriptor that is not watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` once, `seconds` from now."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def stop(self) -> None:
        """End `run` after the callbacks of this round."""
        self._running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._running:
            for key, events in self._selector.select(self._timeout()):
                # an earlier callback of this round may have closed this descriptor
                current = self._selector.get_map().get(key.fd)
                if current is None or current.data is not key.data:
                    continue
                self._call_back(key.fd, events, *key.data)
            self._run_timers()

    def close(self) -> None:
        self._selector.close()

    def _call_back(
        self, fd: int, events: int, readable: Callable[[], None], writable: Callable[[], None] | None
    ) -> None:
        try:
            if events & selectors.EVENT_WRITE and writable is not None:
                writable()
            if events & selectors.EVENT_READ and fd in self._selector.get_map():
                readable()
        except MemoryError:
            log.exception("out of memory; tried again in the next round")
            time.sleep(_MEMORY_PAUSE_S)  # the descriptor is ready still: not at full speed

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is None:
                continue
            try:
                call()
            except MemoryError:
                log.exception("out of memory; tried again soon")
                self.after(_MEMORY_PAUSE_S, call)
