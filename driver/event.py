"""`ze_event_pool_handle_t` and `ze_event_handle_t`: signalled and reset by the host or by commands."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from softnpu.driver.errors import error
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Block
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.context import Context
    from softnpu.driver.recording import Recording

_remembering = threading.Lock()


class EventPool(Handle):
    """Room for `count` events; an index is free again when its event is destroyed."""

    def __init__(self, context: Context, count: int) -> None:
        call = "zeEventPoolCreate"
        if count < 1:
            raise error(
                call,
                ZeResult.ERROR_INVALID_SIZE,
                "event pool",
                found=f"{count} events",
                expected="at least 1",
            )
        self.context = context
        self.count = count
        self._block = context.memory.allocate(call, "control", count * SIGNAL_SIZE)
        self._used: set[int] = set()
        self._owns(context, context.connection, self._used.clear)

    def create_event(self, index: int = 0) -> Event:
        """`zeEventCreate`. Raises `ZeError` with INVALID_ARGUMENT for an index out of range or in use."""
        call = "zeEventCreate"
        self.check(call)
        if not 0 <= index < self.count or index in self._used:
            found = "in use" if index in self._used else "out of range"
            raise error(
                call,
                ZeResult.ERROR_INVALID_ARGUMENT,
                "event pool",
                found=f"index {index}: {found}",
                expected=f"a free index from 0 to {self.count - 1}",
            )
        self._used.add(index)
        return Event(self, index, self._block, self._used)

    def _let_go(self) -> None:
        del self._block


class Event(Handle):
    """An event. It stays signalled until it is reset; nothing resets it by itself."""

    def __init__(self, pool: EventPool, index: int, block: Block, used: set[int]) -> None:
        self.pool = pool
        self._context = pool.context
        self._block = block
        self._offset = index * SIGNAL_SIZE
        self._record = block.event(self._offset)
        self._record.initialize()
        self._spin = new_budget()
        self._recordings: tuple[weakref.ref[Recording], ...] = ()  # replaced, never changed: others read it
        self._owns(pool, pool.context.connection, used.discard, index)

    def host_signal(self) -> None:
        """`zeEventHostSignal`: signalled from now on, also for commands that wait."""
        self.check("zeEventHostSignal")
        if failpoints.active is not None:
            failpoints.hit("client.signal")
        self._record.host_signal()
        self._context.ring_doorbell()

    def host_reset(self) -> None:
        """`zeEventHostReset`: not signalled from now on."""
        self.check("zeEventHostReset")
        self._record.host_reset()

    def query_status(self) -> bool:
        """`zeEventQueryStatus`: True for SUCCESS, False for NOT_READY."""
        self.check("zeEventQueryStatus")
        return self._record.signalled

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeEventHostSynchronize`: waits for the commands in flight that signal this event.

        False (NOT_READY) when the time has passed, and at once when no such command is in flight.
        Raises `ZeError` with ERROR_DEVICE_LOST when the daemon is gone.
        """
        call = "zeEventHostSynchronize"
        self.check(call)
        record = self._record

        def over() -> bool:
            return record.signalled or not self._will_be_signalled()

        wait(call, over, record.sleep, timeout_ns, self._context.connection, self._spin)
        return record.signalled

    # ------------------------------------------------------------ for command lists

    def record(self) -> tuple[Block, int]:
        """Where the event lies, for commands."""
        self.check("zeCommandListAppendSignalEvent")
        return self._block, self._offset

    def _let_go(self) -> None:
        del self._block

    def remember(self, recording: Recording) -> None:
        """A command of this recording signals the event."""
        with _remembering:
            kept = [entry for entry in self._recordings if entry() not in (None, recording)]
            self._recordings = (*kept, weakref.ref(recording))

    def _will_be_signalled(self) -> bool:
        for entry in self._recordings:
            recording = entry()
            if recording is not None and recording.in_flight():
                return True
        return False
