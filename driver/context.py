"""`ze_context_handle_t`: owns memory, queues, command lists, graphs and events on one device."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from softnpu.driver.command_list import CommandList
from softnpu.driver.command_queue import CommandQueue
from softnpu.driver.connection import Connection
from softnpu.driver.event import Event
from softnpu.driver.graph import Graph, GraphSource
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Allocation, Block, MemoryPool
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.records import SIGNAL_SIZE

if TYPE_CHECKING:
    from softnpu.driver.device import Device

_SIGNALS = 64
DEFAULT_SLOTS = 256


class Context(Handle):
    """A context; destroying it destroys everything that was created in it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.connection: Connection = device.connection
        created, fds = self.connection.request(
            "zeContextCreate", msg.ContextCreate(device=device.info.index), msg.ContextCreated
        )
        self.handle: int = created.context
        (self.doorbell,) = fds
        self.memory: MemoryPool = MemoryPool(self.connection, self.handle)
        self._free_signals: deque[tuple[Block, int]] = deque()
        self._owns(self.connection, _destroy, self.connection, self.handle, self.doorbell, self.memory)

    # ------------------------------------------------------------ memory

    def alloc_host(self, size: int, alignment: int = 0) -> Allocation:
        """`zeMemAllocHost`: `size` bytes. Raises `ZeError`: UNSUPPORTED_SIZE, UNSUPPORTED_ALIGNMENT,
        OUT_OF_DEVICE_MEMORY."""
        return self._alloc("zeMemAllocHost", "host", size, alignment)

    def alloc_device(self, size: int, alignment: int = 0) -> Allocation:
        """`zeMemAllocDevice`; host-visible as on the real device. Errors as `alloc_host`."""
        return self._alloc("zeMemAllocDevice", "device", size, alignment)

    def alloc_shared(self, size: int, alignment: int = 0) -> Allocation:
        """`zeMemAllocShared`. Errors as `alloc_host`."""
        return self._alloc("zeMemAllocShared", "shared", size, alignment)

    def query_memory(self) -> tuple[int, int]:
        """Bytes of device memory in all, and bytes that this context has asked for."""
        self.check("pfnQueryContextMemory")
        self.memory.flush()
        answer, _ = self.connection.request(
            "pfnQueryContextMemory", msg.ContextMemory(context=self.handle), msg.ContextMemoryIs
        )
        return answer.total, answer.allocated

    # ------------------------------------------------------------ objects

    def create_command_queue(
        self, priority: str = "normal", turbo: bool = False, slots: int = DEFAULT_SLOTS
    ) -> CommandQueue:
        """`zeCommandQueueCreate`: `priority` low, normal or high; `turbo` waits busily on both sides."""
        self.check("zeCommandQueueCreate")
        return CommandQueue(self, priority, turbo, slots)

    def create_command_list(self) -> CommandList:
        """`zeCommandListCreate`: an empty, open command list."""
        self.check("zeCommandListCreate")
        return CommandList(self)

    def create_event(self) -> Event:
        """`zeEventCreate`: an event that is not signalled."""
        self.check("zeEventCreate")
        return Event(self)

    def create_graph(
        self,
        source: GraphSource,
        config: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> Graph:
        """`pfnCreate2` of the graph extension: compiles `source`.

        `config` holds OpenVINO property names and values, `shapes` static shapes by input name.
        `progress(stage, done)` is called on the way; if it raises, the compilation is cancelled.
        Raises `ZeError` with the reason when the model cannot be compiled.
        """
        self.check("pfnCreate2")
        return Graph(self, source, dict(config or {}), dict(shapes or {}), progress)

    # ------------------------------------------------------------ for the objects of this context

    def ring_doorbell(self) -> None:
        """Wakes the engine."""
        os.eventfd_write(self.doorbell, 1)

    def take_signal(self, call: str) -> tuple[Block, int]:
        """64 zeroed bytes for a fence or an event; many share one allocation."""
        while True:
            try:
                return self._free_signals.pop()
            except IndexError:
                block = self.memory.allocate(call, "control", _SIGNALS * SIGNAL_SIZE)
                self._free_signals.extend((block, index * SIGNAL_SIZE) for index in range(_SIGNALS))

    def give_signal(self, block: Block, offset: int) -> None:
        """Takes a signal back for the next fence or event."""
        self._free_signals.append((block, offset))

    def _alloc(self, call: str, kind: str, size: int, alignment: int) -> Allocation:
        self.check(call)
        block = self.memory.allocate(call, kind, size, alignment)
        return Allocation(block, kind, self.connection)


def _destroy(connection: Connection, handle: int, doorbell: int, memory: MemoryPool) -> None:
    memory.close()
    os.close(doorbell)
    if not connection.is_lost():
        connection.request("zeContextDestroy", msg.ContextDestroy(context=handle), msg.Ok)
