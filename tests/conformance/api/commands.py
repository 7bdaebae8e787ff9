"""Command queues, command lists, fences and events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import (
    Answer,
    CommandListDesc,
    CommandQueueDesc,
    CopyRegion,
    EventDesc,
    EventPoolDesc,
    FenceDesc,
    Handle,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    Pointer,
)

Handles = Sequence[Handle] | None


class CommandsApi(ABC):
    """The part of the API that makes the device do something."""

    # ------------------------------------------------------------ queues

    @abstractmethod
    def ze_command_queue_create(
        self, context: Handle, device: Handle, desc: CommandQueueDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_command_queue_destroy(self, queue: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_command_queue_execute_command_lists(
        self, queue: Handle, count: int, lists: Handles, fence: Handle = None
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_queue_synchronize(self, queue: Handle, timeout: int) -> ZeResult: ...

    @abstractmethod
    def ze_command_queue_set_workload_type(self, queue: Handle, workload: int) -> ZeResult:
        """`pfnSetWorkloadType` of the command queue extension."""

    # ------------------------------------------------------------ lists

    @abstractmethod
    def ze_command_list_create(
        self, context: Handle, device: Handle, desc: CommandListDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_command_list_create_immediate(
        self, context: Handle, device: Handle, desc: CommandQueueDesc | None, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_command_list_destroy(self, command_list: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_close(self, command_list: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_reset(self, command_list: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_host_synchronize(self, command_list: Handle, timeout: int) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_is_immediate(self, command_list: Handle, out: bool = True) -> Answer[bool]: ...

    @abstractmethod
    def ze_command_list_get_next_command_id_exp(
        self, command_list: Handle, desc: MutableCommandIdDesc | None, out: bool = True
    ) -> Answer[int]: ...

    @abstractmethod
    def ze_command_list_update_mutable_commands_exp(
        self, command_list: Handle, desc: MutableCommandsDesc | None
    ) -> ZeResult: ...

    # ------------------------------------------------------------ commands

    @abstractmethod
    def ze_command_list_append_barrier(
        self,
        command_list: Handle,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_memory_copy(
        self,
        command_list: Handle,
        target: Pointer,
        source: Pointer,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    @abstractmethod
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
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_memory_fill(
        self,
        command_list: Handle,
        target: Pointer,
        pattern: bytes | None,
        size: int,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_write_global_timestamp(
        self,
        command_list: Handle,
        target: Pointer,
        signal_event: Handle = None,
        num_wait_events: int = 0,
        wait_events: Handles = None,
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_signal_event(self, command_list: Handle, event: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_wait_on_events(
        self, command_list: Handle, count: int, events: Handles
    ) -> ZeResult: ...

    @abstractmethod
    def ze_command_list_append_event_reset(self, command_list: Handle, event: Handle) -> ZeResult: ...

    # ------------------------------------------------------------ fences

    @abstractmethod
    def ze_fence_create(self, queue: Handle, desc: FenceDesc | None, out: bool = True) -> Answer[Handle]: ...

    @abstractmethod
    def ze_fence_destroy(self, fence: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_fence_host_synchronize(self, fence: Handle, timeout: int) -> ZeResult: ...

    @abstractmethod
    def ze_fence_query_status(self, fence: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_fence_reset(self, fence: Handle) -> ZeResult: ...

    # ------------------------------------------------------------ events

    @abstractmethod
    def ze_event_pool_create(
        self, context: Handle, desc: EventPoolDesc | None, count: int, devices: Handles, out: bool = True
    ) -> Answer[Handle]: ...

    @abstractmethod
    def ze_event_pool_destroy(self, pool: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_event_create(self, pool: Handle, desc: EventDesc | None, out: bool = True) -> Answer[Handle]: ...

    @abstractmethod
    def ze_event_destroy(self, event: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_event_host_signal(self, event: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_event_host_reset(self, event: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_event_query_status(self, event: Handle) -> ZeResult: ...

    @abstractmethod
    def ze_event_host_synchronize(self, event: Handle, timeout: int) -> ZeResult: ...
