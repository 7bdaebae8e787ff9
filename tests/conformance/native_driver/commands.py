"""Queues, lists, fences and events of the native driver."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api import structures as api
from tests.conformance.api.structures import Answer, Handle, Handles, Pointer
from tests.conformance.native_driver import library as lib
from tests.conformance.native_driver.session import (
    Session,
    answer,
    array,
    call,
    creation,
    events_of,
    handle,
    made,
    plain,
    pointer,
    told,
)

_QUEUE_OPTIONS, _MUTABLE_LIST, _MUTABLE_ARGUMENT, _STRIDES = 2, 0x20016, 0x20020, 0xB


class NativeCommands(Session):
    """The part of the API that makes the device work."""

    # ------------------------------------------------------------ queues

    def ze_command_queue_create(
        self, context: Handle, device: Handle, desc: api.CommandQueueDesc | None, out: bool = True
    ) -> Answer[Handle]:
        given, extra = _queue_desc(desc)
        result = made("zeCommandQueueCreate", out, handle(context), handle(device), pointer(given))
        del extra
        return result

    ze_command_queue_destroy = plain("zeCommandQueueDestroy")

    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult:
        name = "zeCommandQueueExecuteCommandLists"
        return call(name, handle(queue), c_uint32(count), array(lists), handle(fence))

    ze_command_queue_synchronize = plain("zeCommandQueueSynchronize", c_uint64)

    def ze_command_queue_set_workload_type(self, queue: Handle, workload: int) -> ZeResult:
        return ZeResult(self.queues.SetWorkloadType(handle(queue), c_uint32(workload)))

    # ------------------------------------------------------------ lists

    def ze_command_list_create(
        self, context: Handle, device: Handle, desc: api.CommandListDesc | None, out: bool = True
    ) -> Answer[Handle]:
        given, extra = None, lib.Flags(stype=_MUTABLE_LIST)
        if desc is not None:
            given = lib.ListDesc(ordinal=desc.ordinal, flags=desc.flags)
            if desc.mutable:
                given.pNext = ctypes.addressof(extra)
        return made("zeCommandListCreate", out, handle(context), handle(device), pointer(given))

    def ze_command_list_create_immediate(
        self, context: Handle, device: Handle, desc: api.CommandQueueDesc | None, out: bool = True
    ) -> Answer[Handle]:
        given, extra = _queue_desc(desc)
        result = made("zeCommandListCreateImmediate", out, handle(context), handle(device), pointer(given))
        del extra
        return result

    ze_command_list_destroy = plain("zeCommandListDestroy")
    ze_command_list_close = plain("zeCommandListClose")
    ze_command_list_reset = plain("zeCommandListReset")
    ze_command_list_host_synchronize = plain("zeCommandListHostSynchronize", c_uint64)

    ze_command_list_is_immediate = told(
        "zeCommandListIsImmediate", c_uint8, lambda struct: bool(struct.value)
    )

    def ze_command_list_get_next_command_id_exp(
        self, command_list: Handle, desc: api.MutableCommandIdDesc | None, out: bool = True
    ) -> Answer[int]:
        given = None if desc is None else lib.Flags(flags=desc.flags)
        number = c_uint64()
        result = call(
            "zeCommandListGetNextCommandIdExp",
            handle(command_list),
            pointer(given),
            ctypes.byref(number) if out else None,
        )
        return answer(result, lambda: number.value)

    def ze_command_list_update_mutable_commands_exp(
        self, command_list: Handle, desc: api.MutableCommandsDesc | None
    ) -> ZeResult:
        given, links = None, []
        if desc is not None:
            links = [_link(link) for link in desc.chain]
            given = lib.Flags(flags=desc.flags)
            for owner, link in zip([given, *links], links, strict=False):
                owner.pNext = ctypes.addressof(link)
        return call("zeCommandListUpdateMutableCommandsExp", handle(command_list), pointer(given))

    # ------------------------------------------------------------ commands

    def ze_command_list_append_barrier(self, command_list: Handle, *events: Any) -> ZeResult:
        return call("zeCommandListAppendBarrier", handle(command_list), *events_of(*events))

    def ze_command_list_append_memory_copy(
        self, command_list: Handle, target: Pointer, source: Pointer, size: int, *events: Any
    ) -> ZeResult:
        places = (c_void_p(target), c_void_p(source), c_size_t(size))
        return call("zeCommandListAppendMemoryCopy", handle(command_list), *places, *events_of(*events))

    def ze_command_list_append_memory_copy_region(
        self,
        command_list: Handle,
        target: Pointer,
        target_region: api.CopyRegion | None,
        target_pitch: int,
        target_slice_pitch: int,
        source: Pointer,
        source_region: api.CopyRegion | None,
        source_pitch: int,
        source_slice_pitch: int,
        *events: Any,
    ) -> ZeResult:
        return call(
            "zeCommandListAppendMemoryCopyRegion",
            handle(command_list),
            c_void_p(target),
            pointer(_region(target_region)),
            c_uint32(target_pitch),
            c_uint32(target_slice_pitch),
            c_void_p(source),
            pointer(_region(source_region)),
            c_uint32(source_pitch),
            c_uint32(source_slice_pitch),
            *events_of(*events),
        )

    def ze_command_list_append_memory_fill(
        self, command_list: Handle, target: Pointer, pattern: bytes | None, size: int, *events: Any
    ) -> ZeResult:
        return call(
            "zeCommandListAppendMemoryFill",
            handle(command_list),
            c_void_p(target),
            None if pattern is None else ctypes.create_string_buffer(pattern),
            c_size_t(len(pattern or b"")),
            c_size_t(size),
            *events_of(*events),
        )

    def ze_command_list_append_write_global_timestamp(
        self, command_list: Handle, target: Pointer, *events: Any
    ) -> ZeResult:
        name = "zeCommandListAppendWriteGlobalTimestamp"
        return call(name, handle(command_list), c_void_p(target), *events_of(*events))

    ze_command_list_append_signal_event = plain("zeCommandListAppendSignalEvent", c_void_p)

    def ze_command_list_append_wait_on_events(
        self, command_list: Handle, count: int, events: Handles
    ) -> ZeResult:
        name = "zeCommandListAppendWaitOnEvents"
        return call(name, handle(command_list), c_uint32(count), array(events))

    ze_command_list_append_event_reset = plain("zeCommandListAppendEventReset", c_void_p)

    # ------------------------------------------------------------ fences

    ze_fence_create = creation("zeFenceCreate", lambda desc: lib.Flags(flags=desc.flags))

    ze_fence_destroy = plain("zeFenceDestroy")
    ze_fence_host_synchronize = plain("zeFenceHostSynchronize", c_uint64)
    ze_fence_query_status = plain("zeFenceQueryStatus")
    ze_fence_reset = plain("zeFenceReset")

    # ------------------------------------------------------------ events

    def ze_event_pool_create(
        self, context: Handle, desc: api.EventPoolDesc | None, count: int, devices: Handles, out: bool = True
    ) -> Answer[Handle]:
        given = None if desc is None else lib.EventPoolDesc(flags=desc.flags, count=desc.count)
        return made(
            "zeEventPoolCreate", out, handle(context), pointer(given), c_uint32(count), array(devices)
        )

    ze_event_pool_destroy = plain("zeEventPoolDestroy")

    ze_event_create = creation("zeEventCreate", lambda desc: lib.EventDesc(index=desc.index))

    ze_event_destroy = plain("zeEventDestroy")
    ze_event_host_signal = plain("zeEventHostSignal")
    ze_event_host_reset = plain("zeEventHostReset")
    ze_event_query_status = plain("zeEventQueryStatus")
    ze_event_host_synchronize = plain("zeEventHostSynchronize", c_uint64)


def _queue_desc(desc: api.CommandQueueDesc | None) -> tuple[Any, Any]:
    """Return the C descriptor of a queue, and its chained structures."""
    if desc is None:
        return None, None
    given = lib.QueueDesc(ordinal=desc.ordinal, index=desc.index, mode=desc.mode, priority=desc.priority)
    extra = lib.QueueOptions(stype=_QUEUE_OPTIONS, options=desc.options)
    if desc.options:
        given.pNext = ctypes.addressof(extra)
    return given, extra


def _region(region: api.CopyRegion | None) -> Any:
    if region is None:
        return None
    return lib.CopyRegion(
        region.origin_x, region.origin_y, region.origin_z, region.width, region.height, region.depth
    )


def _link(link: api.MutableGraphArgument | api.MutableGraphStrides) -> Any:
    if isinstance(link, api.MutableGraphStrides):
        return lib.StridesValue(stype=_STRIDES, strides=link.strides)
    return lib.MutableGraphArgument(
        stype=_MUTABLE_ARGUMENT, commandId=link.command_id, argIndex=link.argument, pArgValue=link.value
    )
