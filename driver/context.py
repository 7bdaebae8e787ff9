"""`ze_context_handle_t`: owns memory, queues, command lists, graphs and events on one device."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from softnpu.driver.block import Block
from softnpu.driver.command_list import CommandList
from softnpu.driver.command_list_immediate import CommandListImmediate
from softnpu.driver.command_queue import CommandQueue, QueueMode, check_ordinal
from softnpu.driver.context_base import ContextBase
from softnpu.driver.errors import check_type, error, invalid_argument
from softnpu.driver.event import Event, EventPool
from softnpu.driver.graph import Graph, GraphSource
from softnpu.driver.memory import Allocation, MemoryRef
from softnpu.driver.properties import MemoryAllocationProperties, MemoryType
from softnpu.driver.shared_memory import is_foreign, open_name, part_of
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.device import Device
    from softnpu.driver.metrics import MetricGroup, MetricQueryPool, MetricStreamer
    from softnpu.driver.published_memory import PublishedMemory

_IMMEDIATE_SLOTS = 4
DEFAULT_SLOTS = 256


class Context(ContextBase):
    """A context; destroying it destroys everything that was created in it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        super().__init__(device.driver, device._connection, device.info)
        self._ids = itertools.count(1)
        self.idle_optimizations = True
        self.idle_pruning_timeout_ms = 30_000
        self._allocations: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()

    # ------------------------------------------------------------ memory

    def alloc_host(self, size: int, alignment: int = 0, export: bool = False) -> Allocation:
        """`zeMemAllocHost`: `size` bytes, aligned to `alignment`, any power of two (0: 64 bytes).

        Alignment beyond a page is limited by the free address space of this process. `export` is the export
        descriptor: another process can import the memory.
        Raises `ZeError`: UNSUPPORTED_SIZE, UNSUPPORTED_ALIGNMENT, OUT_OF_DEVICE_MEMORY.
        """
        return self._alloc("zeMemAllocHost", "host", size, alignment, export)

    def alloc_device(self, size: int, alignment: int = 0, export: bool = False) -> Allocation:
        """`zeMemAllocDevice`; host-visible as on the real device. As `alloc_host`."""
        return self._alloc("zeMemAllocDevice", "device", size, alignment, export)

    def alloc_shared(self, size: int, alignment: int = 0, export: bool = False) -> Allocation:
        """`zeMemAllocShared`. As `alloc_host`."""
        return self._alloc("zeMemAllocShared", "shared", size, alignment, export)

    def free(self, memory_ref: MemoryRef) -> None:
        """`zeMemFree`: free an allocation, given as an object or by its start address.

        Raises `ZeError` with INVALID_ARGUMENT for null, an address inside, and memory of another context.
        """
        call = "zeMemFree"
        self._check(call)
        address = memory_ref.address if isinstance(memory_ref, Allocation) else memory_ref
        allocation = self._allocations.get(address) if isinstance(address, int) else None
        if allocation is None or allocation.destroyed:
            raise invalid_argument(
                call,
                f"address {address:#x}" if isinstance(address, int) else f"{memory_ref!r}",
                found="not the start of an allocation of this context",
                expected="what alloc_host, alloc_device or alloc_shared of this context returned",
            )
        allocation.destroy()

    def get_alloc_properties(self, memory_ref: MemoryRef) -> MemoryAllocationProperties:
        """`zeMemGetAllocProperties`; `memory_ref` may lie inside. NOT_AVAILABLE for memory of no context."""
        call = "zeMemGetAllocProperties"
        self._check(call)
        block, _ = self._memory.resolve(call, memory_ref, ZeResult.ERROR_NOT_AVAILABLE)
        allocation = self._allocations.get(block.address)
        if allocation is None:
            return MemoryAllocationProperties(type=MemoryType.UNKNOWN, id=0, page_size=PAGE)
        kind = MemoryType[allocation.kind.upper()]
        return MemoryAllocationProperties(type=kind, id=allocation.id, page_size=PAGE)

    def get_address_range(self, memory_ref: MemoryRef) -> tuple[int, int]:
        """`zeMemGetAddressRange`: return the allocation's device address and its requested size.

        Raises `ZeError` with NOT_AVAILABLE for memory outside any context.
        """
        call = "zeMemGetAddressRange"
        self._check(call)
        block, _ = self._memory.resolve(call, memory_ref, ZeResult.ERROR_NOT_AVAILABLE)
        return block.device_address, block.size

    def export_memory(self, allocation: Allocation) -> int:
        """Return the descriptor of exportable memory (`zeMemGetAllocProperties` with the export descriptor).

        The caller owns it. Raises `ZeError` with INVALID_ENUMERATION for memory that is not exportable.
        """
        call = "zeMemGetAllocProperties"
        self._check(call)
        allocation._check(call)
        return self._memory.export_segment(call, allocation._block)

    def import_memory(
        self, fd: int, kind: str = "host", offset: int = 0, size: int | None = None
    ) -> Allocation:
        """Import memory exported by another process, rounded to pages, or a file in shared memory.

        The range is `size` bytes from byte `offset`, or the rest without a size. The caller keeps the
        descriptor. Raises `ZeError` with INVALID_ARGUMENT for any other descriptor, INVALID_SIZE for a range
        outside the memory.
        """
        call = "zeMemAllocHost"
        self._check(call)
        check_type(call, "descriptor", fd, int)
        if offset or size is not None or is_foreign(fd):
            taken = part_of(call, f"descriptor {fd}", fd, offset, size)
            return self._wrap(self._memory.import_part(call, fd, offset, taken, kind, foreign=True), kind)
        return self._wrap(self._memory.import_segment(call, fd, kind), kind)

    def open_shared_memory(self, name: str, offset: int = 0, size: int | None = None) -> Allocation:
        """Open memory published by another program under a POSIX name (`shm_open`), in place.

        The range is `size` bytes from byte `offset`, or the rest without a size. Its owner must not truncate
        it: a submission that finds it smaller ends with DEVICE_LOST. Needs the module posix_ipc.
        Raises `ZeError`: NOT_AVAILABLE for an unknown name, INSUFFICIENT_PERMISSIONS for one that this user
        may not write, INVALID_SIZE for a range outside the memory.
        """
        call = "Context.open_shared_memory"
        self._check(call)
        check_type(call, "shared memory, name", name, str)
        check_type(call, "shared memory, offset", offset, int)
        if size is not None:
            check_type(call, "shared memory, size", size, int)
        fd = open_name(call, name)
        try:
            taken = part_of(call, f"shared memory {name!r}", fd, offset, size)
            return self._wrap(self._memory.import_part(call, fd, offset, taken, foreign=True), "host")
        finally:
            os.close(fd)

    def publish_shared_memory(self, name: str, size: int, mode: int = 0o600) -> PublishedMemory:
        """Allocate device memory under a POSIX name, for programs without softnpu, which `shm_open` it.

        The name ends with the allocation, with this context and with this process, even if killed; existing
        mappings stay valid. Programs with the rights in `mode` can write and truncate the memory, with the
        consequences described in `open_shared_memory`.
        Raises `ZeError`: NOT_AVAILABLE for a name in use, UNSUPPORTED_SIZE, OUT_OF_HOST_MEMORY.
        """
        from softnpu.driver.published_memory import PublishedMemory, make
        from softnpu.driver.published_names import published

        call = "Context.publish_shared_memory"
        self._check(call)
        number, fd = make(call, name, size, mode)
        try:
            block = self._memory.import_part(call, fd, 0, size, foreign=True)
            allocation = PublishedMemory(self, block, next(self._ids), self._connection, name, number)
        except BaseException:
            published.drop(number)
            raise
        finally:
            os.close(fd)
        self._allocations[allocation.address] = allocation
        return allocation

    def import_system_memory(self, address: int, size: int, *, read_only: bool = False) -> Allocation:
        """Import memory of this process at `address`, in place (`zeMemAllocHost` with the import descriptor).

        It must be whole pages of a shared mapping of a file in shared memory (`memfd_create`, `shm_open`).
        The program keeps it, and keeps it mapped as long as the allocation lives. Unless its size is sealed,
        a submission that finds the file smaller ends with DEVICE_LOST. Raises `ZeError` with
        UNSUPPORTED_FEATURE for any other memory, which has to be copied, and with INVALID_ARGUMENT for an
        allocation of this context.

        `read_only`: the device only reads it. Then any shared mapping will do, also of a file on a local
        disk, from a page on and of any size.
        """
        from softnpu.driver.system_memory import open_system_memory  # late: few programs have such memory

        call = "zeMemAllocHost"
        self._check(call)
        check_type(call, "system memory, address", address, int)
        check_type(call, "system memory, size", size, int)
        fd, offset = open_system_memory(call, address, size, read_only=read_only)
        try:
            foreign = read_only or is_foreign(fd)
            if foreign and not read_only:
                part_of(call, f"{size} bytes at {address:#x}", fd, offset, size)
            block = self._memory.import_part(
                call, fd, offset, size, address=address, foreign=foreign, read_only=read_only
            )
            return self._wrap(block, "host")
        finally:
            os.close(fd)

    def query_memory(self) -> tuple[int, int]:
        """Return the bytes of device memory in total, and the bytes allocated by this context."""
        answer = self._ask_memory()
        return answer.total, answer.allocated

    def query_graph_memory(self) -> int:
        """Return the bytes of the graphs initialised in this context, blobs and weights, shared ones once."""
        return self._ask_memory().graphs

    def _ask_memory(self) -> msg.ContextMemoryAnswer:
        self._check("pfnQueryContextMemory")
        self._memory.flush()
        answer, _ = self._connection.request(
            "pfnQueryContextMemory", msg.ContextMemory(context=self.handle), msg.ContextMemoryAnswer
        )
        return answer

    def set_properties(self, disable_idle_optimizations: bool) -> None:
        """`pfnSetProperties` of the context extension: opt out of pruning idle memory, or in again."""
        call = "pfnSetProperties"
        self._check(call)
        self._choose_idle(call, not disable_idle_optimizations, self.idle_pruning_timeout_ms)

    def set_idle_pruning_timeout(self, timeout_ms: int) -> None:
        """`zexContextSetIdlePruningTimeout`: the idle time after which `release_memory` is automatic.

        No effect while the context has opted out.
        """
        call = "zexContextSetIdlePruningTimeout"
        self._check(call)
        check_type(call, "idle time in milliseconds", timeout_ms, int)
        if not 0 <= timeout_ms < 2**64:
            raise invalid_argument(call, "idle time", found=f"{timeout_ms} ms", expected="0 to 2^64 - 1")
        self._choose_idle(call, self.idle_optimizations, timeout_ms)

    def release_memory(self) -> None:
        """`pfnReleaseMemory` of the context extension: release memory that is idle now.

        It comes back on demand: the next inference loads the graph again.
        """
        call = "pfnReleaseMemory"
        self._check(call)
        self._free_fences.clear()
        self._memory.flush()
        self._connection.request(call, msg.ContextRelease(context=self.handle), msg.Ok)

    def _choose_idle(self, call: str, enabled: bool, timeout_ms: int) -> None:
        request = msg.ContextIdle(context=self.handle, after_ms=timeout_ms if enabled else None)
        self._connection.request(call, request, msg.Ok)
        self.idle_optimizations, self.idle_pruning_timeout_ms = enabled, timeout_ms

    # ------------------------------------------------------------ objects

    def create_command_queue(
        self,
        priority: str = "normal",
        turbo: bool = False,
        slots: int = DEFAULT_SLOTS,
        *,
        ordinal: int = 0,
        mode: QueueMode = QueueMode.DEFAULT,
        device_sync: bool = False,
    ) -> CommandQueue:
        """`zeCommandQueueCreate`: `priority` is low, normal or high; `turbo` makes both sides busy-wait.

        `device_sync` promises strict order on the device, which this device always keeps. Raises `ZeError`:
        INVALID_ARGUMENT for an ordinal other than 0, INVALID_ENUMERATION for `device_sync` with the
        synchronous mode.
        """
        call = "zeCommandQueueCreate"
        self._check(call)
        check_type(call, "command queue, priority", priority, str)
        check_ordinal(call, ordinal)
        if device_sync and mode is QueueMode.SYNCHRONOUS:
            raise error(
                call,
                ZeResult.ERROR_INVALID_ENUMERATION,
                "command queue",
                found="DEVICE_SYNC with the synchronous mode",
                expected="the asynchronous mode",
            )
        return CommandQueue(self, priority, turbo and not device_sync, slots, mode)

    def create_command_list(
        self, *, mutable: bool = False, in_order: bool = False, ordinal: int = 0
    ) -> CommandList:
        """`zeCommandListCreate`: an empty, open list. Commands of a list always run in order."""
        del in_order
        self._check("zeCommandListCreate")
        check_ordinal("zeCommandListCreate", ordinal)
        if mutable:
            from softnpu.driver.command_list_mutable import CommandListMutable

            return CommandListMutable(self)
        return CommandList(self)

    def create_command_list_immediate(
        self, priority: str = "normal", mode: QueueMode = QueueMode.DEFAULT, *, ordinal: int = 0
    ) -> CommandListImmediate:
        """`zeCommandListCreateImmediate`: every append runs at once."""
        call = "zeCommandListCreateImmediate"
        self._check(call)
        check_ordinal(call, ordinal)
        return CommandListImmediate(self, CommandQueue(self, priority, False, _IMMEDIATE_SLOTS, mode))

    def create_event_pool(self, count: int) -> EventPool:
        """`zeEventPoolCreate`: room for `count` events. INVALID_SIZE for none."""
        self._check("zeEventPoolCreate")
        return EventPool(self, count)

    def create_event(self) -> Event:
        """Create an event in a pool of its own."""
        return self.create_event_pool(1).create_event(0)

    def activate_metric_groups(self, groups: Sequence[MetricGroup]) -> None:
        """`zetContextActivateMetricGroups`: activate exactly these; see `metrics.activate`."""
        from softnpu.driver import metrics  # imported late: few programs use metrics

        metrics.activate(self, self.device._metric_groups(), groups)

    def create_metric_query_pool(self, group: MetricGroup, count: int) -> MetricQueryPool:
        """`zetMetricQueryPoolCreate`: room for `count` queries.

        Raises `ZeError`: UNINITIALIZED unless metrics are enabled, INVALID_SIZE for none, NOT_READY if the
        group is not active.
        """
        from softnpu.driver.metrics import MetricQueryPool

        self._check("zetMetricQueryPoolCreate")
        return MetricQueryPool(self, group, count)

    def open_metric_streamer(
        self,
        group: MetricGroup,
        sampling_period_ns: int,
        notify_every_n_reports: int = 0,
        notification_event: Event | None = None,
    ) -> MetricStreamer:
        """`zetMetricStreamerOpen`: report the group every `sampling_period_ns`, 1 ms to 60 s.

        `notification_event` is signalled when the host looks at it and that many reports are readable.
        Raises `ZeError`: NOT_READY if the group is not active, INVALID_ARGUMENT for another period.
        """
        from softnpu.driver.metrics import MetricStreamer

        call = "zetMetricStreamerOpen"
        self._check(call)
        if notification_event is not None:
            check_type(call, "event", notification_event, Event)
            self._check_session(call, "event", notification_event._context._connection)
        streamer = MetricStreamer(self, group, sampling_period_ns)
        if notification_event is not None and notify_every_n_reports:
            notification_event._track(streamer, notify_every_n_reports)
        return streamer

    def get_status(self) -> None:
        """`zeContextGetStatus`: return if the device is usable; raise DEVICE_LOST if it is gone."""
        self._check("zeContextGetStatus")
        self.device.driver.status("zeContextGetStatus")

    def create_graph(
        self,
        source: GraphSource,
        config: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> Graph:
        """Compile `source`, as `pfnCreate2` of the graph extension (`GraphExtension.create2`) does.

        `config` holds OpenVINO property names and values, `shapes` static shapes by input name.
        `progress(stage, done)` reports progress; if it raises, the compilation is cancelled.
        Raises `ZeError` with the reason when the model cannot be compiled.
        """
        from softnpu.driver.graph_creation import compile_source

        return compile_source(self, source, config=config, shapes=shapes, progress=progress)

    def _alloc(self, call: str, kind: str, size: int, alignment: int, export: bool) -> Allocation:
        self._check(call)
        check_type(call, "memory, size", size, int)
        check_type(call, "memory, alignment", alignment, int)
        return self._wrap(self._memory.allocate(call, kind, size, alignment, export), kind)

    def _wrap(self, block: Block, kind: str) -> Allocation:
        allocation = Allocation(self, block, kind, next(self._ids), self._connection)
        self._allocations[allocation.address] = allocation
        return allocation
