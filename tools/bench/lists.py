"""`bench lists`: the cost of a command in a long command list, beside the same fills by numpy in-process.

The engine decodes a list on its first execution only. Both are measured, and the time to record a command.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from softnpu.driver import Allocation, CommandList, CommandQueue, Context, Driver, Fence
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import REST_S, median
from softnpu.tools.bench.submission import wait
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import private_session

BENCH = "lists"
TARGET_US = 10.0
_FILL = 64
_VALUE = 5
_PEER = "numpy fill"
_UNIT = "us/command"


def run(count: int, rounds: int) -> Iterator[Measurement]:
    """Yield microseconds per command in lists of `count` fills; the target applies to executing them."""
    recorded, first, again, host = [], [], [], []
    with private_session() as driver:
        fills = Fills(driver, count)
        for _ in range(rounds):
            time.sleep(REST_S)
            recorded.append(fills.record())
            first.append(fills.execute())
            again.append(fills.execute())
            host.append(fills.on_host())
    peer = median(host) / count * 1e6
    for metric, times in (("first execution", first), ("executed again", again)):
        value = median(times) / count * 1e6
        yield absolute(BENCH, f"{count} fills, {metric}", _UNIT, value, at_most=TARGET_US)
        yield compared(BENCH, f"{count} fills, {metric}", _UNIT, value, _PEER, peer)
    value = median(recorded) / count * 1e6
    yield compared(BENCH, f"{count} fills, recorded and closed", _UNIT, value, _PEER, peer)


class Fills:
    """A list of `count` adjacent fills of 64 bytes, rebuilt for every round."""

    def __init__(self, driver: Driver, count: int) -> None:
        self._context: Context = driver.devices[0].create_context()
        self._queue: CommandQueue = self._context.create_command_queue()
        self._fence: Fence = self._queue.create_fence()
        self._memory: Allocation = self._context.alloc_device(count * _FILL)
        self._views = [self._memory.view(offset=index * _FILL, shape=(_FILL,)) for index in range(count)]
        self._commands: CommandList = self._context.create_command_list()

    def record(self) -> float:
        """Return seconds to record and close a new list."""
        self._commands.destroy()
        start = time.perf_counter()
        commands = self._context.create_command_list()
        address = self._memory.address
        for index in range(len(self._views)):
            commands.append_memory_fill(address + index * _FILL, bytes([_VALUE]), _FILL)
        commands.close()
        taken = time.perf_counter() - start
        self._commands = commands
        return taken

    def execute(self) -> float:
        """Return seconds from submitting the list to the return of the wait for its fence."""
        self._memory.view()[:] = 0
        start = time.perf_counter()
        self._queue.execute_command_lists([self._commands], self._fence)
        wait(self._fence, "command list")
        taken = time.perf_counter() - start
        if not (self._memory.view() == _VALUE).all():
            raise ToolError(
                "command list", found="memory that was not filled", expected=f"{_VALUE} in every byte"
            )
        return taken

    def close(self) -> None:
        """Release everything."""
        self._context.destroy()

    def on_host(self) -> float:
        """Return seconds of the same fills in this process."""
        start = time.perf_counter()
        for view in self._views:
            view.fill(_VALUE)
        return time.perf_counter() - start
