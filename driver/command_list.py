"""`ze_command_list_handle_t`: commands that are recorded once and executed any number of times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from softnpu.driver.errors import error
from softnpu.driver.event import Event
from softnpu.driver.graph import Graph
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Allocation, Block
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.command_queue import CommandQueue
    from softnpu.driver.context import Context

Place = Allocation | npt.NDArray[Any] | int
"""An allocation, a contiguous view of one, or an address inside one."""

_inferences = itertools.count(1)


class CommandList(Handle):
    """A list is open while commands are appended; `close` makes it executable, `reset` empties it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._commands: list[bytes] = []
        self._used: list[object] = []
        self._buffer: Block | None = None
        self._size = 0
        self._closed = False
        self._last: tuple[CommandQueue, int] | None = None
        # buffer and memory in use are given back with the last reference to them
        self._owns(context.connection, self._commands.clear)

    # ------------------------------------------------------------ recording

    def append_barrier(self) -> None:
        """`zeCommandListAppendBarrier`."""
        self._append("zeCommandListAppendBarrier", cmd.Barrier())

    def append_memory_copy(self, target: Place, source: Place, size: int) -> None:
        """`zeCommandListAppendMemoryCopy`: `size` bytes; the ranges may overlap."""
        call = "zeCommandListAppendMemoryCopy"
        self._append(call, cmd.Copy(self._place(call, target), self._place(call, source), size))

    def append_memory_fill(self, target: Place, pattern: bytes, size: int) -> None:
        """`zeCommandListAppendMemoryFill`: repeats `pattern` (1, 2 or 4 bytes) over `size` bytes."""
        call = "zeCommandListAppendMemoryFill"
        if len(pattern) not in (1, 2, 4) or size % len(pattern):
            raise error(
                call,
                ZeResult.ERROR_INVALID_SIZE,
                "fill pattern",
                f"{len(pattern)} bytes over {size}",
                "1, 2 or 4 bytes that divide the size",
            )
        self._append(call, cmd.Fill(self._place(call, target), size, pattern))

    def append_write_global_timestamp(self, target: Place) -> None:
        """`zeCommandListAppendWriteGlobalTimestamp`: the device clock in ns, 8 bytes at `target`."""
        call = "zeCommandListAppendWriteGlobalTimestamp"
        self._append(call, cmd.Timestamp(self._place(call, target)))

    def append_signal_event(self, event: Event) -> None:
        """`zeCommandListAppendSignalEvent`."""
        call = "zeCommandListAppendSignalEvent"
        self._append(call, cmd.EventSignal(self._event(call, event)))

    def append_wait_on_events(self, events: Sequence[Event]) -> None:
        """`zeCommandListAppendWaitOnEvents`: goes on when all are signalled.

        A wait longer than the device's TDR limit is aborted and the queue is lost.
        """
        call = "zeCommandListAppendWaitOnEvents"
        if not events:
            raise error(call, ZeResult.ERROR_INVALID_SIZE, "events", "none", "at least one")
        for event in events:
            self._append(call, cmd.EventWait(self._event(call, event)))

    def append_event_reset(self, event: Event) -> None:
        """`zeCommandListAppendEventReset`."""
        call = "zeCommandListAppendEventReset"
        self._append(call, cmd.EventReset(self._event(call, event)))

    def append_graph_initialize(self, graph: Graph) -> None:
        """`pfnAppendGraphInitialize`: harmless when repeated."""
        call = "pfnAppendGraphInitialize"
        self._check_open(call)
        graph.initialize()
        self._used.append(graph)
        self._append(call, cmd.GraphInit(graph.handle))

    def append_graph_execute(self, graph: Graph) -> None:
        """`pfnAppendGraphExecute`: one inference with the arguments that the graph has now.

        Raises `ZeError` with ERROR_UNINITIALIZED when an argument was not set.
        """
        call = "pfnAppendGraphExecute"
        self._check_open(call)
        graph.check(call)
        places = []
        for block, offset in graph.arguments_now(call):
            self._used.append(block)
            places.append(MemoryAt(block.handle, offset))
        self._used.append(graph)
        self._append(call, cmd.GraphExecute(graph.handle, next(_inferences), tuple(places)))

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """`zeCommandListClose`: ends recording; harmless when repeated."""
        call = "zeCommandListClose"
        self.check(call)
        if self._closed:
            return
        if self._commands:
            data = cmd.encode_buffer(self._commands)
            buffer = self._buffer
            if buffer is None or buffer.size < len(data) or self._in_flight():
                buffer = self.context.memory.allocate(call, "control", len(data))
            start = buffer.offset
            buffer.mapping.buffer[start : start + len(data)] = data
            self._buffer, self._size = buffer, len(data)
        self._closed = True

    def reset(self) -> None:
        """`zeCommandListReset`: empties the list and opens it; submissions in flight are not changed."""
        self.check("zeCommandListReset")
        self._commands.clear()
        # submissions in flight hold the old list of what they use
        self._used = []
        self._closed = False

    @property
    def empty(self) -> bool:
        return not self._commands

    def submission(self, call: str) -> tuple[Block, int, object]:
        """Buffer, its size, and what must stay alive while it runs. ERROR_UNINITIALIZED if still open."""
        self.check(call)
        if not self._closed:
            raise error(
                call, ZeResult.ERROR_UNINITIALIZED, "command list", "still open", "a closed list", "close it"
            )
        assert self._buffer is not None
        return self._buffer, self._size, self._used

    def submitted(self, queue: CommandQueue, sequence: int) -> None:
        """Notes the last submission, so that its buffer is not overwritten."""
        self._last = (queue, sequence)

    def _in_flight(self) -> bool:
        return self._last is not None and not self._last[0].has_ended(self._last[1])

    def _check_open(self, call: str) -> None:
        self.check(call)
        if self._closed:
            raise error(
                call, ZeResult.ERROR_NOT_AVAILABLE, "command list", "closed", "an open list", "reset it first"
            )

    def _append(self, call: str, command: cmd.Command) -> None:
        self._check_open(call)
        self._commands.append(cmd.encode_command(command))

    def _place(self, call: str, place: Place) -> MemoryAt:
        block, offset = self.context.memory.find(call, place)
        self._used.append(block)
        return MemoryAt(block.handle, offset)

    def _event(self, call: str, event: Event) -> MemoryAt:
        event.check(call)
        block, offset = event.record()
        self._used.append(block)
        return MemoryAt(block.handle, offset)
