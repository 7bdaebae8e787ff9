"""Queues, lists, fences and events of the Python driver."""

from __future__ import annotations

from typing import Any

from softnpu.driver import CommandList, CommandQueue, Context, Event, Fence
from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind
from softnpu.driver.command_queue import QueueMode
from softnpu.driver.device import Device
from softnpu.driver.errors import error
from softnpu.driver.event import EventPool
from softnpu.driver.region import CopyRegion as DriverRegion
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import FenceFlag, ListFlag, QueueOption, QueuePriority, WorkloadType
from tests.conformance.api.structures import (
    CopyRegion,
    EventPoolDesc,
    Handle,
    Handles,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
    MutableGraphStrides,
    Pointer,
)
from tests.conformance.python_driver.results import (
    Keeper,
    answers,
    counted,
    creation,
    destruction,
    events_of,
    given,
    live,
    method,
    results,
    told,
)

_PRIORITIES = {QueuePriority.NORMAL: "normal", QueuePriority.LOW: "low", QueuePriority.HIGH: "high"}


class PythonCommands(Keeper):
    """The part of the API that makes the device work."""

    # ------------------------------------------------------------ queues

    ze_command_queue_create = creation(
        [Context, Device],
        lambda context, _, desc: context.create_command_queue(
            _PRIORITIES[QueuePriority(desc.priority)],
            bool(desc.options & QueueOption.TURBO),
            ordinal=desc.ordinal,
            mode=QueueMode(desc.mode),
            device_sync=bool(desc.options & QueueOption.DEVICE_SYNC),
        ),
    )

    ze_command_queue_destroy = destruction("zeCommandQueueDestroy", CommandQueue)

    @results
    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> None:
        this = live(queue, CommandQueue)
        if lists is None or any(entry is None for entry in lists):
            raise error("adapter", ZeResult.ERROR_INVALID_NULL_POINTER, "command lists", found="null pointer")
        entries = [live(entry, CommandList) for entry in lists[:count]]
        this.execute_command_lists(entries, None if fence is None else live(fence, Fence))

    ze_command_queue_synchronize = method(CommandQueue, "synchronize")

    @results
    def ze_command_queue_set_workload_type(self, queue: Handle, workload: int) -> None:
        this = live(queue, CommandQueue)
        if workload not in tuple(WorkloadType):
            # a flag in Python: there is no third value
            raise error("adapter", ZeResult.ERROR_INVALID_ENUMERATION, "workload type", found=f"{workload}")
        this.set_workload_type(workload == WorkloadType.BACKGROUND)

    # ------------------------------------------------------------ lists

    ze_command_list_create = creation(
        [Context, Device],
        lambda context, _, desc: context.create_command_list(
            mutable=desc.mutable, in_order=bool(desc.flags & ListFlag.IN_ORDER), ordinal=desc.ordinal
        ),
    )

    ze_command_list_create_immediate = creation(
        [Context, Device],
        lambda context, _, desc: context.create_command_list_immediate(
            _PRIORITIES[QueuePriority(desc.priority)], QueueMode(desc.mode), ordinal=desc.ordinal
        ),
    )

    ze_command_list_destroy = destruction("zeCommandListDestroy", CommandList)
    ze_command_list_close = method(CommandList, "close")
    ze_command_list_reset = method(CommandList, "reset")
    ze_command_list_host_synchronize = method(CommandList, "host_synchronize")

    ze_command_list_is_immediate = told(CommandList, lambda this: this.is_immediate())

    @answers
    def ze_command_list_get_next_command_id_exp(
        self, command_list: Handle, desc: MutableCommandIdDesc | None, out: bool = True
    ) -> int:
        this = _mutable(command_list)
        given(desc, out)
        assert desc is not None
        return this.get_next_command_id(desc.flags)

    @results
    def ze_command_list_update_mutable_commands_exp(
        self, command_list: Handle, desc: MutableCommandsDesc | None
    ) -> None:
        this = _mutable(command_list)
        given(desc)
        assert desc is not None
        this.update_mutable_commands(_mutations(desc), desc.flags)

    # ------------------------------------------------------------ commands

    @results
    def ze_command_list_append_barrier(self, command_list: Handle, *events: Any) -> None:
        this = live(command_list, CommandList)
        this.append_barrier(*events_of(*events))

    @results
    def ze_command_list_append_memory_copy(
        self, command_list: Handle, target: Pointer, source: Pointer, size: int, *events: Any
    ) -> None:
        this = live(command_list, CommandList)
        this.append_memory_copy(target, source, size, *events_of(*events))

    @results
    def ze_command_list_append_memory_copy_region(
        self,
        command_list: Handle,
        target: Pointer,
        target_region: CopyRegion | None,
        target_pitch: int,
        target_slice_pitch: int,
        source: Pointer,
        source_region: CopyRegion | None,
        source_pitch: int,
        source_slice_pitch: int,
        *events: Any,
    ) -> None:
        this = live(command_list, CommandList)
        given(target_region, source_region)
        this.append_memory_copy_region(
            target,
            _region(target_region),
            target_pitch,
            source,
            _region(source_region),
            source_pitch,
            target_slice_pitch,
            source_slice_pitch,
            *events_of(*events),
        )

    @results
    def ze_command_list_append_memory_fill(
        self, command_list: Handle, target: Pointer, pattern: bytes | None, size: int, *events: Any
    ) -> None:
        this = live(command_list, CommandList)
        given(pattern)
        assert pattern is not None
        this.append_memory_fill(target, pattern, size, *events_of(*events))

    @results
    def ze_command_list_append_write_global_timestamp(
        self, command_list: Handle, target: Pointer, *events: Any
    ) -> None:
        this = live(command_list, CommandList)
        this.append_write_global_timestamp(target, *events_of(*events))

    @results
    def ze_command_list_append_signal_event(self, command_list: Handle, event: Handle) -> None:
        live(command_list, CommandList).append_signal_event(live(event, Event))

    @results
    def ze_command_list_append_wait_on_events(
        self, command_list: Handle, count: int, events: Handles
    ) -> None:
        this = live(command_list, CommandList)
        waits = counted(count, events, Event, without=ZeResult.ERROR_INVALID_NULL_POINTER)
        this.append_wait_on_events(waits)

    @results
    def ze_command_list_append_event_reset(self, command_list: Handle, event: Handle) -> None:
        live(command_list, CommandList).append_event_reset(live(event, Event))

    # ------------------------------------------------------------ fences

    ze_fence_create = creation(
        [CommandQueue], lambda queue, desc: queue.create_fence(bool(desc.flags & FenceFlag.SIGNALED))
    )

    ze_fence_destroy = destruction("zeFenceDestroy", Fence)
    ze_fence_host_synchronize = method(Fence, "host_synchronize")
    ze_fence_query_status = method(Fence, "query_status")
    ze_fence_reset = method(Fence, "reset")

    # ------------------------------------------------------------ events

    @answers
    def ze_event_pool_create(
        self, context: Handle, desc: EventPoolDesc | None, count: int, devices: Handles, out: bool = True
    ) -> Handle:
        this = live(context, Context)
        given(desc, out)
        assert desc is not None
        counted(count, devices, Device)
        return self.keep(this.create_event_pool(desc.count))

    ze_event_pool_destroy = destruction("zeEventPoolDestroy", EventPool)

    ze_event_create = creation([EventPool], lambda pool, desc: pool.create_event(desc.index))

    ze_event_destroy = destruction("zeEventDestroy", Event)
    ze_event_host_signal = method(Event, "host_signal")
    ze_event_host_reset = method(Event, "host_reset")
    ze_event_query_status = method(Event, "query_status")
    ze_event_host_synchronize = method(Event, "host_synchronize")


def _mutable(command_list: Handle) -> CommandListMutable:
    """Return a list of the class with these calls; an ordinary one is INVALID_ARGUMENT in C."""
    this = live(command_list, CommandList)
    if not isinstance(this, CommandListMutable):
        raise error("adapter", ZeResult.ERROR_INVALID_ARGUMENT, "command list", found="not mutable")
    return this


def _mutations(desc: MutableCommandsDesc) -> list[Mutation]:
    """Return the chain; in C a strides structure implicitly belongs to the preceding argument."""
    made = []
    owners = [link for link in desc.chain if isinstance(link, MutableGraphArgument)]
    owner = owners[0] if owners else MutableGraphArgument(0, 0, 0)
    for link in desc.chain:
        if isinstance(link, MutableGraphStrides):
            made.append(
                Mutation(MutationKind.STRIDES, owner.command_id, owner.argument, strides=link.strides)
            )
        else:
            owner = link
            made.append(Mutation(MutationKind.GRAPH_ARGUMENT, link.command_id, link.argument, link.value))
    return made


def _region(region: CopyRegion | None) -> DriverRegion:
    assert region is not None
    return DriverRegion(
        region.origin_x, region.origin_y, region.origin_z, region.width, region.height, region.depth
    )
