"""What a context offers its objects: connection, memory, doorbell, fence memory."""

from __future__ import annotations

import itertools
import os
from collections import deque

from softnpu.driver.block import Block
from softnpu.driver.connection import Connection
from softnpu.driver.errors import invalid_argument
from softnpu.driver.handle import Handle
from softnpu.driver.memory import MemoryPool
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.emulator.interface.records import SIGNAL_SIZE
from softnpu.emulator.interface.shared import FenceRecord

_FENCES = 64  # in one allocation


class ContextBase(Handle):
    """A context of the daemon. `Context` adds the calls that create objects in it."""

    def __init__(self, driver: Handle, connection: Connection, device_info: DeviceInfo) -> None:
        self._connection = connection
        self._device_info = device_info
        created, fds = connection.request(
            "zeContextCreate", msg.ContextCreate(device=device_info.index), msg.ContextCreated
        )
        self.handle: int = created.context
        (self._doorbell,) = fds
        self._memory = MemoryPool(connection, self.handle)
        self._free_fences: deque[tuple[Block, int]] = deque()
        self._tickets = itertools.count(1)
        """Numbers of calls with a fence, unique in this context."""
        resources = (self._doorbell, self._memory, self._free_fences)
        self._register(driver, connection, _destroy, connection, self.handle, *resources)

    @property
    def lost(self) -> bool:
        """Whether the daemon is gone, and the memory of this context with it."""
        return self._connection.is_lost()

    def _check_session(self, call: str, name: str, other: Connection) -> None:
        """Raise `ZeError` for an object of another session, whose handles mean nothing in this one.

        DEVICE_LOST if that session's daemon is gone, else INVALID_ARGUMENT.
        """
        if other is self._connection:
            return
        other.check(call)
        raise invalid_argument(
            call,
            name,
            found="created through another driver",
            expected="an object of the driver of this context: each Driver.open is a session of its own",
        )

    def _ring_doorbell(self) -> None:
        """Wake the engine."""
        os.eventfd_write(self._doorbell, 1)

    def _allocate_fence(self, call: str) -> tuple[Block, int]:
        """Allocate 64 bytes for a fence; many share one allocation. They may hold an old ticket."""
        while True:
            try:
                return self._free_fences.pop()
            except IndexError:
                size = _FENCES * SIGNAL_SIZE
                block = self._memory.allocate(call, "control", size)
                # stale content must not be taken for a ticket
                block.mapping.buffer[block.offset : block.offset + size] = bytes(size)
                self._free_fences.extend((block, index * SIGNAL_SIZE) for index in range(_FENCES))

    def _free_fence(self, block: Block, offset: int, record: FenceRecord) -> None:
        """Recycle the memory of a fence. Submissions in flight no longer signal it."""
        record.arm(0)
        self._free_fences.append((block, offset))

    def _owner_destroyed(self) -> None:
        _release(self._doorbell, self._memory, self._free_fences)


def _destroy(
    connection: Connection, handle: int, doorbell: int, memory: MemoryPool, fences: deque[tuple[Block, int]]
) -> None:
    _release(doorbell, memory, fences)
    if not connection.is_lost():
        connection.request("zeContextDestroy", msg.ContextDestroy(context=handle), msg.Ok)


def _release(doorbell: int, memory: MemoryPool, fences: deque[tuple[Block, int]]) -> None:
    memory.close()
    fences.clear()
    os.close(doorbell)
