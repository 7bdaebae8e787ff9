"""`ze_event_handle_t`: signalled and reset by the host or by commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver.handle import Handle
from softnpu.driver.memory import Block
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.interface.records import SignalState

if TYPE_CHECKING:
    from softnpu.driver.context import Context


class Event(Handle):
    """An event. It stays signalled until it is reset; nothing resets it by itself."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.block, self.offset = context.take_signal("zeEventCreate")
        self._signal = self.block.signal(self.offset)
        self._signal.arm(SignalState.INITIAL, 0)
        self._spin = new_budget()
        self._owns(context.connection, context.give_signal, self.block, self.offset)

    def host_signal(self) -> None:
        """`zeEventHostSignal`: signalled from now on, also for commands that wait."""
        self.check("zeEventHostSignal")
        self._signal.host_signal()
        self._context.ring_doorbell()

    def host_reset(self) -> None:
        """`zeEventHostReset`: not signalled from now on."""
        self.check("zeEventHostReset")
        self._signal.arm(SignalState.HOST_RESET, 0)

    def query_status(self) -> bool:
        """`zeEventQueryStatus`: True for SUCCESS, False for NOT_READY."""
        self.check("zeEventQueryStatus")
        return self._signal.signalled

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeEventHostSynchronize`: waits until signalled; False (NOT_READY) when the time has passed.

        Raises `ZeError` with ERROR_DEVICE_LOST when the daemon is gone.
        """
        call = "zeEventHostSynchronize"
        self.check(call)
        signal = self._signal
        return wait(
            call, lambda: signal.signalled, signal.sleep, timeout_ns, self._context.connection, self._spin
        )

    def record(self) -> tuple[Block, int]:
        """Where the event lies, for commands."""
        return self.block, self.offset
