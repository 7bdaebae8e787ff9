"""One emulated device: its memory, its words of the status page, and its virtual functions.

A *virtual function* is a user's part of a device: an engine and all its state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import msgspec

from softnpu.emulator.interface import environment, trace
from softnpu.emulator.interface.messages import DeviceInfo, EngineStatus, FunctionStatus, Histogram
from softnpu.emulator.interface.records import STATE_NAMES, DeviceState, Latency, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.ban_policy import BanPolicy
from softnpu.emulator.supervisor.engines.function_counts import PERIOD_S, FunctionCounts
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.limits import Account, Quota
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.settings import DaemonSettings, Isolation, limits_for
from softnpu.emulator.supervisor.users import FunctionKey

_LISTED = 64


class Device:
    """The supervisor's side of one device. `on_start` and `on_end`: of an engine; `on_failed`: the last.

    The primary function is that of the daemon's owner: it lives as long as the daemon, and its engine writes
    the status page by itself. Those of others begin with the first context, and end when they are unused. If
    every session has its own there is no primary one.
    """

    def __init__(
        self,
        info: DeviceInfo,
        reactor: Reactor,
        page: StatusPage,
        settings: DaemonSettings,
        ban_policy: BanPolicy,
        image_numbers: Iterator[int],
    ) -> None:
        self.info = info
        self.memory = Account(show=self._show_memory)
        self.on_ready: Callable[[], None] = lambda: None
        self.on_start: Callable[[VirtualFunction], None] = lambda _function: None
        self.on_end: Callable[[VirtualFunction], None] = lambda _function: None
        self.on_failed: Callable[[VirtualFunction, ErrorInfo], None] = lambda _function, _info: None
        self.on_function_gone: Callable[[VirtualFunction], None] = lambda _function: None
        self._restarts = 0
        self._errors_of_ended = 0
        self._held: dict[VirtualFunction, Account] = {}
        self._page = page
        self._reactor = reactor
        self._settings = settings
        self._bans = ban_policy
        self._image_numbers = image_numbers
        self._setup = link.Setup(
            device=info.index,
            platform=info.platform,
            devices=len(settings.devices),
            tdr_ms=settings.tdr_ms,
            spin_us=settings.spin_us,
            session_memory=limits_for(settings).session_memory,
            self_check=settings.checks_itself,
            kernels=settings.kernels,
            clock=settings.clock,
            inference_us=settings.inference_us,
            shared=settings.is_shared,
            check=environment.check_folder(),
        )
        self._others: dict[FunctionKey, VirtualFunction] = {}
        self._ending: list[VirtualFunction] = []
        self._counts = FunctionCounts(page, info.index)
        self._unused_since: dict[VirtualFunction, float] = {}
        self._timer: Timer | None = None
        self._primary_key = FunctionKey(os.getuid())
        self._primary: VirtualFunction | None = None
        if settings.isolate is Isolation.USER:
            self._primary = self._new_function(self._primary_key, page, self._setup)
        self._set_word(StatusWord.PLATFORM, int(info.platform))
        self._set_word(StatusWord.MEMORY_TOTAL, info.memory_total)

    def start(self) -> None:
        """Start the engine of the primary function; without one the device is ready."""
        if self._primary is not None:
            self._primary.start()
        else:
            self.function_changed()

    def close(self, timeout_s: float) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        for function in (*self.functions, *self._ending):
            function.close(timeout_s)
            if function is not self._primary:
                function.page.close()

    # ------------------------------------------------------------ functions

    @property
    def functions(self) -> tuple[VirtualFunction, ...]:
        """The existing functions, the primary one first."""
        return (
            tuple(self._others.values()) if self._primary is None else (self._primary, *self._others.values())
        )

    @property
    def state(self) -> DeviceState:
        """The state of its primary function."""
        return DeviceState.READY if self._primary is None else self._primary.state

    @property
    def engine_pid(self) -> int:
        """The engine of its primary function; 0 while none runs."""
        return 0 if self._primary is None else self._primary.engine_pid

    def function(self, key: FunctionKey) -> VirtualFunction:
        """Return the function of a user, or of a session, which has contexts."""
        if self._primary is not None and key == self._primary_key:
            return self._primary
        return self._others[key]

    def open_function(self, key: FunctionKey, quota: Quota, ban_key: str, check: str = "") -> VirtualFunction:
        """The function of a user, or of a session, started if need be; `quota` counts it while it lives.

        `check`: where a new one notes what it runs.

        Refuses a process, or a user, whose submissions have reset engines too often.
        """
        self._bans.check(ban_key, key.uid, "context", self.count)
        if key in self._others or (self._primary is not None and key == self._primary_key):
            return self.function(key)
        quota.check()
        page = StatusPage(1)
        try:
            setup = msgspec.structs.replace(self._setup, device=0, devices=1, cpu_cache=False, check=check)
            function = self._new_function(key, page, setup)
        except BaseException:
            page.close()
            raise
        self._others[key] = function
        self._held[function] = quota.hold()
        self._counts.add(page)
        if self._timer is None:
            self._timer = self._reactor.every(PERIOD_S, self._tick)
        function.start()
        return function

    def _new_function(self, key: FunctionKey, page: StatusPage, setup: link.Setup) -> VirtualFunction:
        return VirtualFunction(
            key,
            page is self._page,
            self,
            self._reactor,
            page,
            setup,
            self._settings,
            self._bans,
            self._image_numbers,
        )

    def _tick(self) -> None:
        """Add up the functions' counters, and end unused functions."""
        if self._timer is not None and not self._others and not self._ending:
            self._timer.cancel()
            self._timer = None
        self._counts.refresh()
        for function in list(self._ending):
            function.end(partial(self._ended, function))  # once more, after an error in it
        now = time.monotonic()
        for function in list(self._others.values()):
            if function.needed:
                self._unused_since.pop(function, None)
            elif now - self._unused_since.setdefault(function, now) >= self._settings.tuning.function_idle_s:
                self._end(function)

    def _end(self, function: VirtualFunction) -> None:
        self._unused_since.pop(function, None)
        self._ending.append(self._others.pop(function.key))
        function.end(partial(self._ended, function))

    def _ended(self, function: VirtualFunction) -> None:
        if function not in self._ending:
            return
        steps = ExitStack()  # called by `close`, the last one first: all of them, whatever one raises
        steps.callback(self.function_changed)
        steps.callback(self.on_function_gone, function)
        steps.callback(function.page.close)
        steps.callback(function.close, 0.0)
        steps.callback(self._counts.end, function.page)
        steps.callback(self._held.pop, function)
        steps.callback(self._held[function].close)
        steps.callback(self._remember, function)
        steps.callback(self._ending.remove, function)
        steps.close()

    def _remember(self, function: VirtualFunction) -> None:
        self._restarts += function.restarts
        self._errors_of_ended += function.internal_errors

    # ------------------------------------------------------------ reports of functions

    def function_changed(self) -> None:
        """Publish a change of a function: its engine, its state, its contexts."""
        self._set_word(StatusWord.ENGINE_PID, self.engine_pid)
        self._set_word(StatusWord.STATE, self.state)
        self._set_word(StatusWord.RESTARTS, self.restarts)
        self._set_word(StatusWord.CONTEXTS, sum(len(function.contexts) for function in self.functions))
        if self.state in (DeviceState.READY, DeviceState.FAILED):
            self.on_ready()

    @property
    def restarts(self) -> int:
        """Number of engine replacements, including those of ended functions."""
        return self._restarts + sum(function.restarts for function in self.functions)

    def internal_errors(self, sees: Callable[[FunctionKey], bool]) -> int:
        """Errors of their own code that the engines of these functions have reported, for who `sees` them.

        Of functions that have ended as well, for who sees the owner's.
        """
        ended = self._errors_of_ended if sees(self._primary_key) else 0
        return ended + sum(each.internal_errors for each in self.functions if sees(each.key))

    @property
    def memory_used(self) -> int:
        """Bytes held by clients or not yet dropped by an engine."""
        return self.memory.used

    def _show_memory(self) -> None:
        self._set_word(StatusWord.MEMORY_USED, self.memory_used)
        if trace.active is not None:
            trace.active.counter("memory", self.memory_used, device=self.info.index)

    def check_memory(self, size: int, object: str) -> None:
        """Refuse an allocation that does not fit into what the device has left."""
        left = self.info.memory_total - self.memory_used
        if size > left:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                object,
                found=f"{size} bytes asked for",
                expected=f"at most {left} free bytes of {self.info.memory_total} on device {self.info.index}",
                hint="free memory, or start the daemon with a larger --memory",
            )

    # ------------------------------------------------------------ counters and status

    def _function_status(self, function: VirtualFunction) -> FunctionStatus:
        if function is self._primary:
            return function.status(lambda word: self._page.get(self.info.index, word))
        return function.status(lambda word: self._counts.of(function.page, word))

    def _set_word(self, word: StatusWord, value: int) -> None:
        self._page.set(self.info.index, word, value)

    def counter(self, word: StatusWord) -> int:
        """Return the count at the last reading; for readers only."""
        return self._page.total(self.info.index, word)

    def refresh(self) -> None:
        """Add up the counters of all functions' engines."""
        self._counts.refresh()

    def refresh_if_due(self) -> None:
        """As `refresh`, at a bounded part of the time: for many streams of samples."""
        self._counts.refresh_if_due()

    def count(self, word: StatusWord) -> None:
        """Increment a word of the status page."""
        self._page.count(self.info.index, word)

    def count_time(self, latency: Latency, seconds: float) -> None:
        """Add a duration to a histogram of the status page."""
        self._page.count_time(self.info.index, latency, round(seconds * 1e9))

    def histograms(self) -> tuple[Histogram, ...]:
        """Return the histograms of inferences, loads and compilations."""
        self.refresh()
        return self._page.histograms(self.info.index)

    def status(self, index: int, sees: Callable[[FunctionKey], bool]) -> EngineStatus:
        """Return its status; `index` is its number for the requester, who `sees` these functions."""
        self.refresh()
        functions = self.functions
        contexts = [context for function in functions for context in function.contexts.values()]
        return EngineStatus(
            device=msgspec.structs.replace(self.info, index=index),
            engine_pid=self.engine_pid,
            state=STATE_NAMES[self.state],
            restarts=self.restarts,
            memory_used=self.memory_used,
            contexts=len(contexts),
            queues=sum(len(context.queues) for context in contexts),
            graphs=sum(len(context.graphs) for context in contexts),
            images=sum(len(function.images) for function in functions),
            running=sum(function.running_submission() is not None for function in functions),
            functions=tuple(
                map(self._function_status, [each for each in functions if sees(each.key)][:_LISTED])
            ),
            **self._page.counters(self.info.index),
        )
