"""The event loop of the supervisor: descriptors and timers, one thread, callbacks that never block.

It is the boundary of the daemon: whatever a callback raises ends its owner, and nobody else. The objects of
an owner (a client, a child) get a reactor that is the owner's, made by `owned`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import time
from collections.abc import Callable, Hashable
from typing import NamedTuple, ParamSpec

from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.supervisor.internal_errors import DaemonErrors

log = logging.getLogger(__name__)

P = ParamSpec("P")
_MEMORY_PAUSE_S = 0.01
_BROKEN_PAUSE_S = 0.1
_SHARE_S = 0.005


class Timer:
    """A callback that is due once; `cancel` is harmless when repeated or late."""

    __slots__ = ("call", "owner")

    def __init__(self, call: Callable[[], None], owner: Reactor) -> None:
        self.call: Callable[[], None] | None = call
        self.owner = owner

    def cancel(self) -> None:
        self.call = None


class ChildShare(NamedTuple):
    """The share of processes of ours that work for `whose`.

    They have their turns before those who connect: a client may know already, by memory that it shares with
    an engine, what the engine has sent before.
    """

    whose: Hashable


class _Watch(NamedTuple):
    readable: Callable[[], None]
    writable: Callable[[], None] | None
    owner: Reactor


class _Loop:
    """What all reactors of a daemon share.

    `paused`: what is left alone for a moment, because it raised. `spent`: the time that each share took in
    the last round. `left`: the descriptors for which there was none left, and their order.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.paused: dict[int, _Watch] = {}
        self.spent: dict[Hashable, float] = {}
        self.left: dict[int, int] = {}
        self.timers: list[tuple[float, int, Timer]] = []
        self.numbers = itertools.count()
        self.running = True
        self.errors = DaemonErrors()


class Reactor:
    """Call back when a descriptor is readable or writable, or when a time has come."""

    def __init__(
        self,
        loop: _Loop | None = None,
        whose: str = "which ends nothing",
        on_error: Callable[[ErrorInfo], None] = lambda _info: None,
        share: Hashable = None,
    ) -> None:
        self._loop = loop or _Loop()
        self._whose = whose
        self._on_error = on_error
        self._share = share

    def owned(self, whose: str, on_error: Callable[[ErrorInfo], None], share: Hashable = None) -> Reactor:
        """The same reactor for one owner, which `on_error` ends when one of its callbacks raises.

        `whose` says for the log what ends. Owners with the same `share` (a user) have a few milliseconds of
        each round together.
        """
        return Reactor(self._loop, whose, on_error, share)

    @property
    def errors(self) -> DaemonErrors:
        """What callbacks have raised."""
        return self._loop.errors

    def watch(
        self, fd: int, readable: Callable[[], None], writable: Callable[[], None] | None = None
    ) -> None:
        """Call `readable` (and `writable`, if given) whenever the descriptor is ready."""
        self._loop.paused.pop(fd, None)
        selector, watch = self._loop.selector, _Watch(readable, writable, self)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if fd in selector.get_map():
            selector.modify(fd, events, watch)
        else:
            selector.register(fd, events, watch)

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless for a descriptor that is not watched, and for -1, which is none."""
        self._loop.paused.pop(fd, None)
        if fd >= 0 and fd in self._loop.selector.get_map():
            self._loop.selector.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` once, `seconds` from now."""
        timer = Timer(call, self)
        heapq.heappush(self._loop.timers, (time.monotonic() + seconds, next(self._loop.numbers), timer))
        return timer

    def guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """`call` for somebody else to call: what it raises is this owner's."""

        def protected(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                self._try(lambda: call(*args, **kwargs))
            except MemoryError as error:  # what called it does not do so again
                self.fail(error)

        return protected

    def _try(self, call: Callable[[], object]) -> bool:
        """Call; whether it has raised nothing. Only a lack of memory comes through, and is tried again."""
        try:
            call()
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary of the daemon
            self.fail(error)
            return False
        return True

    def fail(self, error: Exception) -> ErrorInfo:
        """End the owner because of an error that nobody expected; what was said of it."""
        info = self.errors.note(error, self._whose)
        try:
            self._on_error(info)
        except Exception as second:  # noqa: BLE001  # nobody is left to tell
            self.errors.note(second, f"{self._whose}, while that was ended")
        return info

    def stop(self) -> None:
        """End `run` after the callbacks of this round."""
        self._loop.running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._loop.running:
            self._serve(self._loop.selector.select(self._timeout()))
            self._run_timers()

    def close(self) -> None:
        self._loop.selector.close()

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        """One round: what has no share, then each share, those first that took the least time in the last.

        Shares of children come before all others.
        """
        shares: dict[Hashable, list[tuple[selectors.SelectorKey, int]]] = {}
        for key, events in ready:
            share = key.data.owner._share
            if share is None:
                self._call_back(key, events)
            else:
                shares.setdefault(share, []).append((key, events))
        loop = self._loop
        before, loop.spent = loop.spent, {}
        left, loop.left = loop.left, {}

        def turn(share: Hashable) -> tuple[bool, float]:
            return not isinstance(share, ChildShare), before.get(share, 0.0)

        for share in sorted(shares, key=turn):
            loop.spent[share] = self._serve_share(shares[share], left)

    def _serve_share(self, ready: list[tuple[selectors.SelectorKey, int]], first: dict[int, int]) -> float:
        """Serve what belongs to one share for as long as it may take; the time that it took."""
        ready.sort(key=lambda entry: first.get(entry[0].fd, len(first)))
        started = now = time.monotonic()
        for at, (key, events) in enumerate(ready):
            if now - started > _SHARE_S:
                left = self._loop.left
                left.update({rest.fd: more for more, (rest, _) in enumerate(ready[at:], len(left))})
                break
            self._call_back(key, events)
            now = time.monotonic()
        return now - started

    def _call_back(self, key: selectors.SelectorKey, events: int) -> None:
        fd, watch = key.fd, key.data
        if not self._watches(fd, watch):
            return  # an earlier callback of this round has closed this descriptor
        try:
            good = True
            if events & selectors.EVENT_WRITE and watch.writable is not None:
                good = watch.owner._try(watch.writable)
            if events & selectors.EVENT_READ and fd in self._loop.selector.get_map():
                good = watch.owner._try(watch.readable) and good
        except MemoryError:
            log.exception("out of memory; tried again in the next round")
            time.sleep(_MEMORY_PAUSE_S)  # the descriptor is ready still: not at full speed
        else:
            if not good:
                self._pause(fd, watch)

    def _pause(self, fd: int, watch: _Watch) -> None:
        """Leave a descriptor that is still watched alone for a moment: it may raise each time."""
        if self._watches(fd, watch):
            self.unwatch(fd)
            self._loop.paused[fd] = watch
            self.after(_BROKEN_PAUSE_S, lambda: self._resume(fd, watch))

    def _resume(self, fd: int, watch: _Watch) -> None:
        if self._loop.paused.get(fd) is watch:
            again = self.after(_BROKEN_PAUSE_S, lambda: self._resume(fd, watch))
            watch.owner.watch(fd, watch.readable, watch.writable)
            again.cancel()

    def _watches(self, fd: int, watch: _Watch) -> bool:
        current = self._loop.selector.get_map().get(fd)
        return current is not None and current.data is watch

    def _timeout(self) -> float | None:
        timers = self._loop.timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        return max(0.0, timers[0][0] - time.monotonic()) if timers else None

    def _run_timers(self) -> None:
        timers, now = self._loop.timers, time.monotonic()
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            call, timer.call = timer.call, None
            if call is None:
                continue
            try:
                timer.owner._try(call)
            except MemoryError:
                log.exception("out of memory; tried again soon")
                timer.owner.after(_MEMORY_PAUSE_S, call)
