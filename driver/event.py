"""`ze_event_pool_handle_t` and `ze_event_handle_t`: signalled and reset by the host or by commands."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from softnpu.driver.block import Block
from softnpu.driver.errors import check_type, invalid_argument, invalid_size
from softnpu.driver.handle import Handle
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface.records import SIGNAL_SIZE

if TYPE_CHECKING:
    from softnpu.driver.context_base import ContextBase
    from softnpu.driver.metrics import MetricStreamer
    from softnpu.driver.submissions import Recording

_lock = threading.Lock()


class EventPool(Handle):
    """Room for `count` events; an index is free again when its event is destroyed."""

    def __init__(self, context: ContextBase, count: int) -> None:
        call = "zeEventPoolCreate"
        check_type(call, "event pool, count", count, int)
        if count < 1:
            raise invalid_size(call, "event pool", found=f"{count} events", expected="at least 1")
        self.context = context
        self.count = count
        self._block = context._memory.allocate(call, "control", count * SIGNAL_SIZE)
        self._used: set[int] = set()
        self._register(context, context._connection, self._used.clear)

    def create_event(self, index: int = 0) -> Event:
        """`zeEventCreate`. Raises `ZeError` with INVALID_ARGUMENT for an index out of range or in use."""
        call = "zeEventCreate"
        self._check(call)
        check_type(call, "event pool, index", index, int)
        if not 0 <= index < self.count or index in self._used:
            raise invalid_argument(
                call,
                "event pool",
                found=f"index {index}: {'in use' if index in self._used else 'out of range'}",
                expected=f"a free index from 0 to {self.count - 1}",
            )
        self._used.add(index)
        return Event(self, index, self._block, self._used)

    def _drop_references(self) -> None:
        del self._block


class Event(Handle):
    """An event. It stays signalled until it is reset explicitly."""

    def __init__(self, pool: EventPool, index: int, block: Block, used: set[int]) -> None:
        self.pool = pool
        self._context = pool.context
        self._block = block
        self._offset = index * SIGNAL_SIZE
        self._record = block.event(self._offset)
        self._record.initialize()
        self._spin = new_budget()
        self._recordings: tuple[
            weakref.ref[Recording], ...
        ] = ()  # replaced, never changed: other threads read it
        self._tracked: Callable[[], bool] | None = None
        self._register(pool, pool.context._connection, used.discard, index)

    def host_signal(self) -> None:
        """`zeEventHostSignal`: signal the event, also for waiting commands."""
        self._check("zeEventHostSignal")
        if failpoints.active is not None:
            failpoints.hit("client.signal")
        self._record.host_signal()
        self._context._ring_doorbell()

    def host_reset(self) -> None:
        """`zeEventHostReset`: reset the event."""
        self._check("zeEventHostReset")
        self._record.host_reset()

    def query_status(self) -> bool:
        """`zeEventQueryStatus`: True for SUCCESS, False for NOT_READY."""
        self._check("zeEventQueryStatus")
        self._look_at_streamer()
        return self._record.signalled

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeEventHostSynchronize`: wait for commands in flight that signal this event.

        Returns False (NOT_READY) on time-out, and at once when no such command is in flight.
        Raises `ZeError` with ERROR_DEVICE_LOST when the daemon is gone.
        """
        call = "zeEventHostSynchronize"
        self._check(call)
        record = self._record

        def is_over() -> bool:
            self._look_at_streamer()
            return record.signalled or not (self._tracked or self._will_be_signalled())

        wait(call, is_over, record.sleep, timeout_ns, self._context._connection, self._spin)
        return record.signalled

    # ------------------------------------------------------------ for metric streamers

    def _track(self, streamer: MetricStreamer, reports: int) -> None:
        """Signal the event once that many reports are readable; checked whenever the host looks at it."""
        reference = weakref.ref(streamer)

        def is_due() -> bool:
            living = reference()
            if living is None or living.destroyed:
                self._tracked = None
                return False
            return living.available >= reports

        self._tracked = is_due

    def _look_at_streamer(self) -> None:
        if self._tracked is not None and not self._record.signalled and self._tracked():
            self.host_signal()

    # ------------------------------------------------------------ for command lists

    def _location(self) -> tuple[Block, int]:
        """Return the event's location, for commands."""
        self._check("zeCommandListAppendSignalEvent")
        return self._block, self._offset

    def _drop_references(self) -> None:
        del self._block

    def _add_signaller(self, recording: Recording) -> None:
        """Record that a command of this recording signals the event."""
        with _lock:
            others = [entry for entry in self._recordings if entry() not in (None, recording)]
            self._recordings = (*others, weakref.ref(recording))

    def _will_be_signalled(self) -> bool:
        for entry in self._recordings:
            recording = entry()
            if recording is not None and recording.in_flight():
                return True
        return False
