"""`ze_command_list_handle_t`: commands recorded once and executed any number of times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softnpu.driver.block import Block
from softnpu.driver.errors import check_type, error, invalid_size, not_available, uninitialized
from softnpu.driver.event import Event
from softnpu.driver.graph import Graph
from softnpu.driver.handle import Handle
from softnpu.driver.memory import MemoryRef
from softnpu.driver.region import CopyRegion, check_region
from softnpu.driver.submissions import Recording, Submission
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.context_base import ContextBase
    from softnpu.driver.metrics import MetricQuery
    from softnpu.driver.profiling import ProfilingQuery

_inferences = itertools.count(1)


class CommandList(Handle):
    """A command list. It is open for appends until `close` makes it executable; `reset` empties it.

    Every append takes `wait_events`, which the command waits for, and `signal_event`, which it signals.
    """

    def __init__(self, context: ContextBase) -> None:
        self.context = context
        self._commands: list[cmd.Command] = []
        self._used: list[object] = []
        self._recording = Recording()
        self._has_signals = False  # an event refers to the recording
        self._buffer: Block | None = None
        self._submission: Submission | None = None
        self._last_queue: Handle | None = None  # kept alive: a program may hold nothing but the list
        self._closed = False
        # the buffer and the memory in use are freed with the last reference to them
        self._register(context, context._connection, self._commands.clear)

    # ------------------------------------------------------------ recording

    def append_barrier(self, signal_event: Event | None = None, wait_events: Sequence[Event] = ()) -> None:
        """`zeCommandListAppendBarrier`."""
        self._append("zeCommandListAppendBarrier", cmd.Barrier(), signal_event, wait_events)

    def append_memory_copy(
        self,
        target: MemoryRef,
        source: MemoryRef,
        size: int,
        signal_event: Event | None = None,
        wait_events: Sequence[Event] = (),
    ) -> None:
        """`zeCommandListAppendMemoryCopy`: `size` bytes; the ranges may overlap.

        Raises `ZeError`: UNINITIALIZED for memory outside any context. A range beyond its allocation fails
        when the command runs.
        """
        call = "zeCommandListAppendMemoryCopy"
        self._check_open(call)
        check_type(call, "copy, size", size, int)
        command = cmd.Copy(self._resolve_target(call, target), self._resolve(call, source), size)
        self._append(call, command, signal_event, wait_events)

    def append_memory_copy_region(
        self,
        target: MemoryRef,
        target_region: CopyRegion,
        target_pitch: int,
        source: MemoryRef,
        source_region: CopyRegion,
        source_pitch: int,
        target_slice_pitch: int = 0,
        source_slice_pitch: int = 0,
        signal_event: Event | None = None,
        wait_events: Sequence[Event] = (),
    ) -> None:
        """`zeCommandListAppendMemoryCopyRegion`, two dimensions: a rectangle of bytes.

        Raises `ZeError`: UNSUPPORTED_FEATURE for a third dimension, INVALID_SIZE for rectangles that
        differ, have no width, or are wider than the target's pitch. Rectangles without rows append nothing.
        """
        call = "zeCommandListAppendMemoryCopyRegion"
        self._check_open(call)
        target_at, source_at = self._resolve_target(call, target), self._resolve(call, source)
        for value in (*target_region, *source_region, target_pitch, source_pitch):
            check_type(call, "copy region", value, int)
        slice_pitches = (target_slice_pitch, source_slice_pitch)
        check_region(call, target_region, target_pitch, source_region, slice_pitches)
        if target_region.height == 0:
            return  # no row, no command, and no event
        command = cmd.CopyRegion(
            MemoryAt(target_at.memory, target_at.offset + target_region._start(target_pitch)),
            target_pitch,
            MemoryAt(source_at.memory, source_at.offset + source_region._start(source_pitch)),
            source_pitch,
            target_region.width,
            target_region.height,
        )
        self._append(call, command, signal_event, wait_events)

    def append_memory_fill(
        self,
        target: MemoryRef,
        pattern: bytes,
        size: int,
        signal_event: Event | None = None,
        wait_events: Sequence[Event] = (),
    ) -> None:
        """`zeCommandListAppendMemoryFill`: repeat `pattern` (1, 2 or 4 bytes) over `size` bytes.

        The last repetition is truncated at `size`.

        Raises `ZeError`: INVALID_SIZE for another pattern, OUT_OF_DEVICE_MEMORY for memory outside any
        context, UNINITIALIZED past the end of the allocation.
        """
        call = "zeCommandListAppendMemoryFill"
        self._check_open(call)
        check_type(call, "fill pattern", pattern, bytes, bytearray, memoryview)
        check_type(call, "fill, size", size, int)
        if len(pattern) not in (1, 2, 4):
            raise invalid_size(
                call, "fill pattern", found=f"{len(pattern)} bytes", expected="1, 2 or 4 bytes"
            )
        unknown = ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        block, offset = self.context._memory.resolve_target(call, target, unknown)
        if size > block.size - offset:
            raise uninitialized(
                call,
                "fill",
                found=f"{size} bytes at offset {offset}",
                expected=f"a range inside the {block.size} bytes of the allocation",
            )
        self._used.append(block)
        command = cmd.Fill(MemoryAt(block.handle, offset), size, pattern)
        self._append(call, command, signal_event, wait_events)

    def append_write_global_timestamp(
        self, target: MemoryRef, signal_event: Event | None = None, wait_events: Sequence[Event] = ()
    ) -> None:
        """`zeCommandListAppendWriteGlobalTimestamp`: write the device clock in ticks, 8 bytes at `target`."""
        call = "zeCommandListAppendWriteGlobalTimestamp"
        self._check_open(call)
        memory = self._resolve_target(call, target, ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
        self._append(call, cmd.Timestamp(memory), signal_event, wait_events)

    def append_metric_query_begin(self, query: MetricQuery) -> None:
        """`zetCommandListAppendMetricQueryBegin`: start counting."""
        self._append_snapshot("zetCommandListAppendMetricQueryBegin", query, False, None, ())

    def append_metric_query_end(
        self, query: MetricQuery, signal_event: Event | None = None, wait_events: Sequence[Event] = ()
    ) -> None:
        """`zetCommandListAppendMetricQueryEnd`."""
        call = "zetCommandListAppendMetricQueryEnd"
        self._append_snapshot(call, query, True, signal_event, wait_events)

    def append_signal_event(self, event: Event) -> None:
        """`zeCommandListAppendSignalEvent`."""
        call = "zeCommandListAppendSignalEvent"
        self._check_open(call)
        self._record(call, [], event)

    def append_wait_on_events(self, events: Sequence[Event]) -> None:
        """`zeCommandListAppendWaitOnEvents`: wait until all are signalled.

        A wait longer than the device's TDR limit is aborted and the queue is lost.
        """
        call = "zeCommandListAppendWaitOnEvents"
        self._check_open(call)
        if not events:
            raise invalid_size(call, "events", found="none", expected="at least one")
        self._record(call, [cmd.EventWait(self._event(call, event)) for event in events], None)

    def append_event_reset(self, event: Event) -> None:
        """`zeCommandListAppendEventReset`."""
        call = "zeCommandListAppendEventReset"
        self._check_open(call)
        self._record(call, [cmd.EventReset(self._event(call, event))], None)

    def append_graph_initialize(
        self, graph: Graph, signal_event: Event | None = None, wait_events: Sequence[Event] = ()
    ) -> None:
        """`pfnAppendGraphInitialize`; idempotent."""
        call = "pfnAppendGraphInitialize"
        self._check_open(call)
        check_type(call, "graph", graph, Graph)
        self.context._check_session(call, "graph", graph.context._connection)
        graph.initialize()
        self._used.append(graph._on_device)
        self._append(call, cmd.GraphInit(graph.handle), signal_event, wait_events)

    def append_graph_execute(
        self,
        graph: Graph,
        profiling_query: ProfilingQuery | None = None,
        signal_event: Event | None = None,
        wait_events: Sequence[Event] = (),
    ) -> None:
        """`pfnAppendGraphExecute`: one inference with the graph's current arguments.

        An uninitialised graph is loaded first.
        Raises `ZeError`: UNINITIALIZED when an argument was not set, INVALID_NULL_HANDLE for a profiled graph
        without a query.
        """
        call = "pfnAppendGraphExecute"
        self._check_open(call)
        check_type(call, "graph", graph, Graph)
        graph._check(call)
        self.context._check_session(call, "graph", graph.context._connection)
        addresses, strides = [], []
        for index, bound in enumerate(graph._bound_arguments(call)):
            self._used.append(bound.block)
            addresses.append(MemoryAt(bound.block.handle, bound.offset))
            if bound.strides is not None:
                strides.append((index, tuple(bound.strides)))
        self._used.append(graph._on_device)
        profiling = None
        if graph.profiled:
            if profiling_query is None:
                raise error(
                    call,
                    ZeResult.ERROR_INVALID_NULL_HANDLE,
                    "profiling query",
                    found="none",
                    expected="a query: the graph is profiled",
                )
            profiling = self._profiling(call, profiling_query, graph)
        graph._load(call)
        command = cmd.GraphExecute(
            graph.handle, next(_inferences), tuple(addresses), tuple(strides), profiling
        )
        self._append(call, command, signal_event, wait_events)

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """`zeCommandListClose`: end recording; idempotent."""
        call = "zeCommandListClose"
        self._check(call)
        if not self._closed:
            if failpoints.active is not None:
                failpoints.hit("client.record")
            self._encode(call)
            self._closed = True

    def reset(self) -> None:
        """`zeCommandListReset`: empty the list and open it; submissions in flight are not affected."""
        self._check("zeCommandListReset")
        self._commands.clear()
        self._submission = None
        # replaced, not cleared: submissions in flight hold the old list of used objects and the old recording
        self._used = []
        if self._has_signals:
            if self._recording.in_flight():
                self._buffer = None
            self._recording, self._has_signals = Recording(), False
        self._closed = False

    def is_immediate(self) -> bool:
        """`zeCommandListIsImmediate`."""
        self._check("zeCommandListIsImmediate")
        return False

    def host_synchronize(self, timeout_ns: int = 0) -> bool:
        """`zeCommandListHostSynchronize`: for immediate lists only; UNINITIALIZED for this one."""
        del timeout_ns
        call = "zeCommandListHostSynchronize"
        self._check(call)
        raise uninitialized(call, "command list", found="a regular one", expected="an immediate command list")

    # ------------------------------------------------------------ for queues and events

    def _prepare(self, call: str, queue: Handle) -> Submission | None:
        """Return what `queue` executes; None for an empty list. The list keeps the queue alive.

        Raises `ZeError` with ERROR_UNINITIALIZED if it is still open. The queue executes it again without
        asking, while it is closed and lives.
        """
        self._check(call)
        if not self._closed:
            raise uninitialized(
                call, "command list", found="still open", expected="a closed list", hint="close it"
            )
        self._last_queue = queue
        return self._submission

    # ------------------------------------------------------------

    def _profiling(self, call: str, query: ProfilingQuery, graph: Graph) -> MemoryAt:
        from softnpu.driver.profiling import ProfilingQuery  # imported late: few programs profile

        check_type(call, "profiling query", query, ProfilingQuery)
        block, offset = query._location(call, graph)
        self._used.append(block)
        return MemoryAt(block.handle, offset)

    def _append_snapshot(
        self, call: str, query: MetricQuery, end: bool, signal: Event | None, waits: Sequence[Event]
    ) -> None:
        from softnpu.driver.metrics import MetricQuery  # imported late: few programs use metrics

        self._check_open(call)
        check_type(call, "metric query", query, MetricQuery)
        block, offset = query._location(call, end)
        self.context._check_session(call, "metric query", query._pool._connection)
        self._used.append(block)
        self._append(call, cmd.MetricSnapshot(MemoryAt(block.handle, offset)), signal, waits)

    def _encode(self, call: str) -> None:
        """Write the command buffer, without touching the buffer of a submission in flight."""
        if not self._commands:
            return
        data = cmd.encode_buffer([cmd.encode_command(command) for command in self._commands])
        buffer = self._buffer
        if buffer is None or buffer.size < len(data) or self._recording.in_flight():
            buffer = self.context._memory.allocate(call, "control", len(data))
        start = buffer.offset
        buffer.mapping.buffer[start : start + len(data)] = data
        self._buffer = buffer
        self._submission = Submission(buffer, len(data), self._used, self._recording)

    def _check_open(self, call: str) -> None:
        self._check(call)
        if self._closed:
            raise not_available(
                call, "command list", found="closed", expected="an open list", hint="reset it first"
            )

    def _append(
        self, call: str, command: cmd.Command, signal_event: Event | None, wait_events: Sequence[Event]
    ) -> None:
        self._check_open(call)
        waits: list[cmd.Command] = [cmd.EventWait(self._event(call, event)) for event in wait_events]
        self._record(call, [*waits, command], signal_event)

    def _record(self, call: str, commands: Sequence[cmd.Command], signal_event: Event | None) -> None:
        """Record the commands of one append; an immediate list runs them."""
        signal = None if signal_event is None else self._event(call, signal_event)
        self._commands.extend(commands)
        if signal_event is not None and signal is not None:
            self._commands.append(cmd.EventSignal(signal))
            signal_event._add_signaller(self._recording)
            self._has_signals = True

    def _resolve(
        self, call: str, memory: MemoryRef, unknown: ZeResult = ZeResult.ERROR_UNINITIALIZED
    ) -> MemoryAt:
        block, offset = self.context._memory.resolve(call, memory, unknown)
        self._used.append(block)
        return MemoryAt(block.handle, offset)

    def _resolve_target(
        self, call: str, memory: MemoryRef, unknown: ZeResult = ZeResult.ERROR_UNINITIALIZED
    ) -> MemoryAt:
        block, offset = self.context._memory.resolve_target(call, memory, unknown)
        self._used.append(block)
        return MemoryAt(block.handle, offset)

    def _event(self, call: str, event: Event) -> MemoryAt:
        check_type(call, "event", event, Event)
        event._check(call)
        self.context._check_session(call, "event", event.pool.context._connection)
        block, offset = event._location()
        # the event too: its index must not be reused meanwhile
        self._used += (block, event)
        return MemoryAt(block.handle, offset)

    def _drop_references(self) -> None:
        # submissions in flight keep all of it alive
        self._buffer = self._submission = self._last_queue = None
        self._used = []
