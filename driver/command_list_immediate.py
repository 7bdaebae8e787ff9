"""An immediate command list: every append runs at once, on a queue of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softnpu.driver.command_list import CommandList
from softnpu.driver.errors import uninitialized
from softnpu.driver.handle import Handle
from softnpu.driver.waiting import FOREVER

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue
    from softnpu.driver.context_base import ContextBase
    from softnpu.driver.event import Event
    from softnpu.emulator.interface import commands as cmd


class CommandListImmediate(CommandList):
    """An immediate list. Each append waits for the previous one and, on a synchronous queue, for itself."""

    def __init__(self, context: ContextBase, queue: CommandQueue) -> None:
        super().__init__(context)
        self._queue = queue
        self._lock = threading.Lock()  # appends of several threads: one at a time

    def destroy(self) -> None:
        """`zeCommandListDestroy`: also destroys its queue."""
        super().destroy()
        self._queue.destroy()

    def close(self) -> None:
        """`zeCommandListClose`: UNINITIALIZED; an immediate list is never closed."""
        call = "zeCommandListClose"
        self._check(call)
        raise uninitialized(call, "command list", found="an immediate one", expected="a regular command list")

    def is_immediate(self) -> bool:
        """`zeCommandListIsImmediate`."""
        self._check("zeCommandListIsImmediate")
        return True

    def host_synchronize(self, timeout_ns: int = FOREVER) -> bool:
        """`zeCommandListHostSynchronize`: wait for all appended commands; False (NOT_READY) on time-out.

        Raises `ZeError` with the failure of a command, DEVICE_LOST when the daemon is gone.
        """
        self._check("zeCommandListHostSynchronize")
        done = self._queue.synchronize(timeout_ns)
        if done:
            super().reset()
        return done

    def _prepare(self, call: str, queue: Handle) -> None:
        """Raise UNINITIALIZED: a queue cannot execute an immediate list."""
        del queue
        self._check(call)
        raise uninitialized(call, "command list", found="an immediate one", expected="a regular command list")

    def _record(self, call: str, commands: Sequence[cmd.Command], signal_event: Event | None) -> None:
        with self._lock:
            self._queue.synchronize()
            # this append's objects were added before; those of earlier appends are idle
            used = self._used
            super().reset()
            self._used = used
            super()._record(call, commands, signal_event)
            self._encode(call)
            if self._submission is not None:
                self._queue._submit_one(call, self._submission)
