"""Queues, lists, fences and events of the Python driver."""

from __future__ import annotations

from softnpu.driver import CommandList, CommandQueue, Context, Event, Fence
from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind
from softnpu.driver.command_queue import QueueMode
from softnpu.driver.device import Device
from softnpu.driver.errors import error
from softnpu.driver.event import EventPool
from softnpu.driver.region import CopyRegion as DriverRegion
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.commands import CommandsApi, Handles
from tests.conformance.api.enumerations import FenceFlag, ListFlag, QueueOption, QueuePriority, WorkloadType
from tests.conformance.api.structures import (
    CommandListDesc,
    CommandQueueDesc,
    CopyRegion,
    EventDesc,
    EventPoolDesc,
    FenceDesc,
    Handle,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
    MutableGraphStrides,
    Pointer,
)
from tests.conformance.python_driver.results import Keeper, answers, counted, given, live, results

_PRIORITIES = {QueuePriority.NORMAL: "normal", QueuePriority.LOW: "low", QueuePriority.HIGH: "high"}


class PythonCommands(Keeper, CommandsApi):
    """The part of the API that makes the device do something."""

    # ------------------------------------------------------------ queues

    @answers
    def ze_command_queue_create(
        self, context: Handle, device: Handle, desc: CommandQueueDesc | None, out: bool = True
    ) -> Handle:
        found = live(context, Context)
        live(device, Device)
        given(desc, out)
        assert desc is not None
        made = found.create_command_queue(
            _PRIORITIES[QueuePriority(desc.priority)],
            bool(desc.options & QueueOption.TURBO),
            ordinal=desc.ordinal,
            mode=QueueMode(desc.mode),
            device_sync=bool(desc.options & QueueOption.DEVICE_SYNC),
        )
        return self.keep(made)

    @results
    def ze_command_queue_destroy(self, queue: Handle) -> None:
        self.destroy("zeCommandQueueDestroy", queue, CommandQueue)

    @results
    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> None:
        found = live(queue, CommandQueue)
        if lists is None or any(entry is None for entry in lists):
            raise error("adapter", ZeResult.ERROR_INVALID_NULL_POINTER, "command lists", found="null pointer")
        entries = [live(entry, CommandList) for entry in lists[:count]]
        found.execute_command_lists(entries, None if fence is None else live(fence, Fence))

    @results
    def ze_command_queue_synchronize(self, queue: Handle, timeout: int) -> bool:
        return live(queue, CommandQueue).synchronize(timeout)

    @results
    def ze_command_queue_set_workload_type(self, queue: Handle, workload: int) -> None:
        found = live(queue, CommandQueue)
        if workload not in tuple(WorkloadType):
            # a flag in Python: there is no third value
            raise error("adapter", ZeResult.ERROR_INVALID_ENUMERATION, "workload type", found=f"{workload}")
        found.set_workload_type(workload == WorkloadType.BACKGROUND)

    # ------------------------------------------------------------ lists

    @answers
    def ze_command_list_create(
        self, context: Handle, device: Handle, desc: CommandListDesc | None, out: bool = True
    ) -> Handle:
        found = live(context, Context)
        live(device, Device)
        given(desc, out)
        assert desc is not None
        in_order = bool(desc.flags & ListFlag.IN_ORDER)
        made = found.create_command_list(mutable=desc.mutable, in_order=in_order, ordinal=desc.ordinal)
        return self.keep(made)

    @answers
    def ze_command_list_create_immediate(
        self, context: Handle, device: Handle, desc: CommandQueueDesc | None, out: bool = True
    ) -> Handle:
        found = live(context, Context)
        live(device, Device)
        given(desc, out)
        assert desc is not None
        priority = _PRIORITIES[QueuePriority(desc.priority)]
        made = found.create_command_list_immediate(priority, QueueMode(desc.mode), ordinal=desc.ordinal)
        return self.keep(made)

    @results
    def ze_command_list_destroy(self, command_list: Handle) -> None:
        self.destroy("zeCommandListDestroy", command_list, CommandList)

    @results
    def ze_command_list_close(self, command_list: Handle) -> None:
        live(command_list, CommandList).close()

    @results
    def ze_command_list_reset(self, command_list: Handle) -> None:
        live(command_list, CommandList).reset()

    @results
    def ze_command_list_host_synchronize(self, command_list: Handle, timeout: int) -> bool:
        return live(command_list, CommandList).host_synchronize(timeout)

    @answers
    def ze_command_list_is_immediate(self, command_list: Handle, out: bool = True) -> bool:
        found = live(command_list, CommandList)
        given(out)
        return found.is_immediate()

    @answers
    def ze_command_list_get_next_command_id_exp(
        self, command_list: Handle, desc: MutableCommandIdDesc | None, out: bool = True
    ) -> int:
        found = _mutable(command_list)
        given(desc, out)
        assert desc is not None
        return found.get_next_command_id(desc.flags)

    @results
    def ze_command_list_update_mutable_commands_exp(
        self, command_list: Handle, desc: MutableCommandsDesc | None
    ) -> None:
        found = _mutable(command_list)
        given(desc)
        assert desc is not None
        found.update_mutable_commands(_mutations(desc), desc.flags)

    # ------------------------------------------------------------ commands

    @results
    def ze_command_list_append_barrier(
        self,
        command_list: Handle,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> None:
        found = live(command_list, CommandList)
        found.append_barrier(_signal(signal_event), counted(num_wait_events, wait_events, Event))

    @results
    def ze_command_list_append_memory_copy(
        self,
        command_list: Handle,
        target: Pointer,
        source: Pointer,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> None:
        found = live(command_list, CommandList)
        waits = counted(num_wait_events, wait_events, Event)
        found.append_memory_copy(target, source, size, _signal(signal_event), waits)

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
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> None:
        found = live(command_list, CommandList)
        given(target_region, source_region)
        found.append_memory_copy_region(
            target,
            _region(target_region),
            target_pitch,
            source,
            _region(source_region),
            source_pitch,
            target_slice_pitch,
            source_slice_pitch,
            _signal(signal_event),
            counted(num_wait_events, wait_events, Event),
        )

    @results
    def ze_command_list_append_memory_fill(
        self,
        command_list: Handle,
        target: Pointer,
        pattern: bytes | None,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> None:
        found = live(command_list, CommandList)
        given(pattern)
        assert pattern is not None
        waits = counted(num_wait_events, wait_events, Event)
        found.append_memory_fill(target, pattern, size, _signal(signal_event), waits)

    @results
    def ze_command_list_append_write_global_timestamp(
        self,
        command_list: Handle,
        target: Pointer,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> None:
        found = live(command_list, CommandList)
        waits = counted(num_wait_events, wait_events, Event)
        found.append_write_global_timestamp(target, _signal(signal_event), waits)

    @results
    def ze_command_list_append_signal_event(self, command_list: Handle, event: Handle) -> None:
        live(command_list, CommandList).append_signal_event(live(event, Event))

    @results
    def ze_command_list_append_wait_on_events(
        self, command_list: Handle, count: int, events: Handles
    ) -> None:
        found = live(command_list, CommandList)
        waits = counted(count, events, Event, without=ZeResult.ERROR_INVALID_NULL_POINTER)
        found.append_wait_on_events(waits)

    @results
    def ze_command_list_append_event_reset(self, command_list: Handle, event: Handle) -> None:
        live(command_list, CommandList).append_event_reset(live(event, Event))

    # ------------------------------------------------------------ fences

    @answers
    def ze_fence_create(self, queue: Handle, desc: FenceDesc | None, out: bool = True) -> Handle:
        found = live(queue, CommandQueue)
        given(desc, out)
        assert desc is not None
        return self.keep(found.create_fence(bool(desc.flags & FenceFlag.SIGNALED)))

    @results
    def ze_fence_destroy(self, fence: Handle) -> None:
        self.destroy("zeFenceDestroy", fence, Fence)

    @results
    def ze_fence_host_synchronize(self, fence: Handle, timeout: int) -> bool:
        return live(fence, Fence).host_synchronize(timeout)

    @results
    def ze_fence_query_status(self, fence: Handle) -> bool:
        return live(fence, Fence).query_status()

    @results
    def ze_fence_reset(self, fence: Handle) -> None:
        live(fence, Fence).reset()

    # ------------------------------------------------------------ events

    @answers
    def ze_event_pool_create(
        self, context: Handle, desc: EventPoolDesc | None, count: int, devices: Handles, out: bool = True
    ) -> Handle:
        found = live(context, Context)
        given(desc, out)
        assert desc is not None
        counted(count, devices, Device)
        return self.keep(found.create_event_pool(desc.count))

    @results
    def ze_event_pool_destroy(self, pool: Handle) -> None:
        self.destroy("zeEventPoolDestroy", pool, EventPool)

    @answers
    def ze_event_create(self, pool: Handle, desc: EventDesc | None, out: bool = True) -> Handle:
        found = live(pool, EventPool)
        given(desc, out)
        assert desc is not None
        return self.keep(found.create_event(desc.index))

    @results
    def ze_event_destroy(self, event: Handle) -> None:
        self.destroy("zeEventDestroy", event, Event)

    @results
    def ze_event_host_signal(self, event: Handle) -> None:
        live(event, Event).host_signal()

    @results
    def ze_event_host_reset(self, event: Handle) -> None:
        live(event, Event).host_reset()

    @results
    def ze_event_query_status(self, event: Handle) -> bool:
        return live(event, Event).query_status()

    @results
    def ze_event_host_synchronize(self, event: Handle, timeout: int) -> bool:
        return live(event, Event).host_synchronize(timeout)


def _signal(event: Handle) -> Event | None:
    return None if event is None else live(event, Event)


def _mutable(command_list: Handle) -> CommandListMutable:
    """A list of the class that has the calls; an ordinary one is INVALID_ARGUMENT in C."""
    found = live(command_list, CommandList)
    if not isinstance(found, CommandListMutable):
        raise error("adapter", ZeResult.ERROR_INVALID_ARGUMENT, "command list", found="not mutable")
    return found


def _mutations(desc: MutableCommandsDesc) -> list[Mutation]:
    """The chain; a strides structure belongs to the argument before it, in C without saying so."""
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
