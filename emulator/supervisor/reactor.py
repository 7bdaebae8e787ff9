"""The event loop of the supervisor: descriptors and timers, one thread, callbacks that never block.

It is the fault boundary of the daemon: an exception in a callback ends its owner, and nobody else. The
objects of an owner (a client, a child) receive the owner's reactor, made by `owned`.

After any exception, even in the loop itself, nothing is lost: a descriptor whose owner lives stays watched or
is resumed, and a timer runs to completion, or its owner is ended. So state changes follow the step that may
fail, never precede it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import selectors
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, ParamSpec

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.internal_errors import DaemonErrors

P = ParamSpec("P")
_MOMENT_S = 0.01
_BROKEN_PAUSE_S = 0.1
_SHARE_S = 0.005
_NO_MEMORY = ErrorInfo(
    result=ZeResult.ERROR_OUT_OF_HOST_MEMORY,
    object="daemon",
    found="no memory to say what went wrong",
    expected="memory to serve the request",
)


class Timer:
    """A callback that is due once, or in every period; `cancel` is harmless when repeated or late."""

    __slots__ = ("call", "owner", "period_s")

    def __init__(self, call: Callable[[], None], owner: Reactor, period_s: float = 0.0) -> None:
        self.call: Callable[[], None] | None = call
        self.owner: Reactor | None = owner
        self.period_s = period_s

    def cancel(self) -> None:
        # until it is due the heap keeps the timer: not also what it would have called, a client for example
        self.call = self.owner = None


class ChildShare(NamedTuple):
    """The share of our own processes that work for `whose`.

    They are served before clients: through memory shared with an engine, a client may already know what the
    engine has sent.
    """

    whose: Hashable


class _Watch:
    """The callbacks of a descriptor. `until`: the end of its pause."""

    __slots__ = ("owner", "readable", "until", "writable")

    def __init__(
        self, readable: Callable[[], None], writable: Callable[[], None] | None, owner: Reactor
    ) -> None:
        self.readable = readable
        self.writable = writable
        self.owner = owner
        self.until = 0.0


class _Loop:
    """The state shared by all reactors of a daemon.

    `paused`: what is left alone for a moment. `due`: the timer that is being called. `spent`: the time that
    each share took in the last round. `left`: the descriptors for which there was none left, and their order.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.paused: dict[int, _Watch] = {}
        self.spent: dict[Hashable, float] = {}
        self.left: dict[int, int] = {}
        self.timers: list[tuple[float, int, Timer]] = []
        self.due: Timer | None = None
        self.numbers = itertools.count()
        self.running = True
        self.errors = DaemonErrors()


class Reactor:
    """Calls back when a descriptor is readable or writable, or a timer is due."""

    def __init__(
        self,
        loop: _Loop | None = None,
        whose: str = "which ends nothing",
        on_error: Callable[[ErrorInfo], None] | None = None,
        share: Hashable = None,
    ) -> None:
        self._loop = loop or _Loop()
        self._whose = whose
        self._on_error = on_error
        self._share = share

    def owned(self, whose: str, on_error: Callable[[ErrorInfo], None], share: Hashable = None) -> Reactor:
        """Return this reactor for one owner, ended by `on_error` when one of its callbacks raises.

        `whose` says for the log what ends. Owners with the same `share` (a user) have a few milliseconds of
        each round together.
        """
        return Reactor(self._loop, whose, on_error, share)

    @property
    def errors(self) -> DaemonErrors:
        """The exceptions of callbacks."""
        return self._loop.errors

    def watch(
        self, fd: int, readable: Callable[[], None], writable: Callable[[], None] | None = None
    ) -> None:
        """Call `readable` (and `writable`, if given) whenever the descriptor is ready."""
        selector, watch = self._loop.selector, _Watch(readable, writable, self)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if fd in selector.get_map():
            selector.modify(fd, events, watch)
        else:
            selector.register(fd, events, watch)
        self._loop.paused.pop(fd, None)

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless for a descriptor that is not watched, and for -1, which is none."""
        self._loop.paused.pop(fd, None)
        if fd >= 0 and fd in self._loop.selector.get_map():
            self._loop.selector.unregister(fd)

    def pause(self, fd: int, seconds: float = _MOMENT_S) -> None:
        """Pause a watched descriptor for a moment: it cannot be served now."""
        key = self._loop.selector.get_map().get(fd)
        if key is not None:
            key.data.until = time.monotonic() + seconds
            self._loop.paused[fd] = key.data
            self._loop.selector.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` once, `seconds` from now. An unowned call that raises is repeated."""
        timer = Timer(call, self)
        self._push(timer, seconds)
        return timer

    def every(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` every `seconds`, whatever it raises, until cancelled."""
        timer = Timer(call, self, seconds)
        self._push(timer, seconds)
        return timer

    def _push(self, timer: Timer, seconds: float) -> None:
        heapq.heappush(self._loop.timers, (time.monotonic() + seconds, next(self._loop.numbers), timer))

    def guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """Wrap `call` for other callers: its exceptions end this owner."""

        def protected(*args: P.args, **kwargs: P.kwargs) -> None:
            self._try(lambda: call(*args, **kwargs))

        return protected

    def _try(self, call: Callable[[], object]) -> bool:
        """Call; return whether it succeeded."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the boundary of the daemon
            self.fail(error)
            return False
        return True

    def fail(self, error: Exception) -> ErrorInfo:
        """End the owner because of an unexpected error; return the error reported."""
        info = self._note(error, self._whose)
        try:
            if self._on_error is not None:
                self._on_error(info)
        except Exception as second:  # noqa: BLE001  # nobody is left to report to
            self._note(second, f"{self._whose}, while that was ended")
        return info

    def _note(self, error: Exception, whose: str) -> ErrorInfo:
        try:
            return self.errors.note(error, whose)
        except Exception:  # noqa: BLE001  # not reportable either
            return _NO_MEMORY

    def stop(self) -> None:
        """End `run` after the callbacks of this round."""
        self._loop.running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._loop.running:
            try:
                self._round()
            except Exception as error:  # noqa: BLE001  # in the loop itself; ready descriptors stay ready
                self.fail(error)
                time.sleep(_MOMENT_S)  # not at full speed

    def _round(self) -> None:
        self._resume()
        self._serve(self._loop.selector.select(self._timeout()))
        self._run_timers()

    def close(self) -> None:
        self._loop.selector.close()

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Serve one round: callbacks without a share, then shares, ordered by time used in the last round.

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
        """Serve one share within its time limit; return the time used."""
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
        good = True
        if events & selectors.EVENT_WRITE and watch.writable is not None:
            good = watch.owner._try(watch.writable)
        if events & selectors.EVENT_READ and fd in self._loop.selector.get_map():
            good = watch.owner._try(watch.readable) and good
        if not good and self._watches(fd, watch):
            self.pause(fd, _BROKEN_PAUSE_S)  # it may raise each time

    def _watches(self, fd: int, watch: _Watch) -> bool:
        current = self._loop.selector.get_map().get(fd)
        return current is not None and current.data is watch

    def _resume(self) -> None:
        """Resume descriptors whose pause is over."""
        paused = self._loop.paused
        if not paused:
            return
        now = time.monotonic()
        for fd, watch in [entry for entry in paused.items() if entry[1].until <= now]:
            if fd in self._loop.selector.get_map():
                paused.pop(fd, None)  # it was not left alone, or is watched again
            elif paused.get(fd) is watch:  # an earlier failure may have ended it
                watch.until = now + _BROKEN_PAUSE_S
                watch.owner._try(partial(watch.owner.watch, fd, watch.readable, watch.writable))

    def _timeout(self) -> float | None:
        loop = self._loop
        if loop.due is not None:
            return 0.0
        while loop.timers and loop.timers[0][2].call is None:
            heapq.heappop(loop.timers)
        at = loop.timers[0][0] if loop.timers else math.inf
        if loop.paused:
            at = min(at, *(watch.until for watch in loop.paused.values()))
        return None if at == math.inf else max(0.0, at - time.monotonic())

    def _run_timers(self) -> None:
        loop, now = self._loop, time.monotonic()
        while loop.due is not None or (loop.timers and loop.timers[0][0] <= now):
            if loop.due is None:
                loop.due = heapq.heappop(loop.timers)[2]
            self._call(loop.due)
            loop.due = None

    def _call(self, timer: Timer) -> None:
        """Call a timer, and reschedule it if periodic. It is `due` until then."""
        owner = timer.owner
        if timer.call is None or owner is None:
            return
        good = owner._try(timer.call)
        if timer.period_s:
            if timer.call is not None:
                self._push(timer, timer.period_s)
        elif good or owner._on_error is not None:
            timer.call = None
        elif timer.call is not None:
            self._push(timer, _BROKEN_PAUSE_S)  # no owner was ended, and somebody may wait for it
