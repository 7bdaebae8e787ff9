"""The objects that one context's commands may reference: allocations, graphs, and staging for steps."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Any

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.memory.foreign import ForeignFile
from softnpu.emulator.engine.memory.foreign_mapping import ForeignMapping
from softnpu.emulator.engine.memory.mappings import Mapping, Memory
from softnpu.emulator.engine.memory.staging import Staging, StagingAccount, StagingBuffer
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.handles import describe
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links import engine as link

log = logging.getLogger(__name__)


class AddressSpace:
    """The handles of one context.

    `read_messages` reads what the supervisor has sent: a client may use a handle before the engine has read
    of it.
    """

    def __init__(self, read_messages: Callable[[], None], staging: Staging, account: StagingAccount) -> None:
        self._read_messages = read_messages
        self.staging = staging
        self._account = account
        self._mappings: dict[int, Mapping] = {}
        self._memory: dict[int, Memory] = {}
        self._without_mapping: set[int] = set()  # allocations that this process could not map
        self._graphs: dict[int, EngineImage] = {}
        self._scratch: StagingBuffer | None = None
        self.lacks_addresses = False  # which another engine would not have either

    def __contains__(self, handle: int) -> bool:
        return handle in self._memory or handle in self._graphs

    def clear_some(self, most: int) -> bool:
        """Drop up to `most` objects; return whether there was one. Mappings live as long as their views."""
        self._scratch = None
        self._without_mapping.clear()
        every: tuple[dict[int, Any], ...] = (self._memory, self._graphs, self._mappings)
        for objects in every:
            if objects:
                for _ in range(min(most, len(objects))):
                    objects.popitem()  # from the end: dictionaries skip removed entries slowly
                return True
        return False

    def add_segment(self, message: link.SegmentAdd, fd: int) -> None:
        """Map a segment; take the descriptor. If mapping fails, commands that use it are refused."""
        number, size, start = message.segment, message.size, message.start
        try:
            if message.foreign:
                self._mappings[number] = ForeignMapping(
                    fd, size, start, message.foreign, read_only=message.read_only
                )
            else:
                self._mappings[number] = Mapping.of_sealed(fd, size, start)
        except OSError as failure:
            self.lacks_addresses = failure.errno == errno.ENOMEM
            log.warning("segment %d of %d bytes cannot be mapped: %s", number, size, failure)

    def drop_segment(self, number: int) -> Mapping | None:
        """Drop a segment; return its mapping, which lives as long as its views."""
        return self._mappings.pop(number, None)

    def add_placed(self, allocations: Iterable[link.Placed]) -> None:
        for each in allocations:
            self.add_memory(each.memory, each.segment, each.offset, each.size)

    def add_memory(self, handle: int, segment: int, offset: int, size: int) -> None:
        mapping = self._mappings.get(segment)
        if mapping is None:
            self._without_mapping.add(handle)
        else:
            self._memory[handle] = Memory(mapping, offset, size)

    def add_graph(self, handle: int, image: EngineImage) -> None:
        self._graphs[handle] = image

    def drop(self, handle: int) -> None:
        """Drop an allocation or a graph."""
        self._memory.pop(handle, None)
        self._without_mapping.discard(handle)
        self._graphs.pop(handle, None)

    def check_mapped(self, handle: int) -> None:
        """Refuse an allocation that this process could not map."""
        if handle in self._without_mapping:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                describe(handle),
                found="not mapped: the device has no addresses left for it",
                expected="memory that fits",
                hint="free sparse memory",
            )

    def memory(self, handle: int) -> Memory:
        """Return the live allocation of a handle; refuse a stale or unknown one."""
        memory = self._memory.get(handle)
        if memory is None:
            self._read_messages()
            memory = self._memory.get(handle)
        self.check_mapped(handle)
        if memory is None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(handle),
                found="not a live allocation of this context",
                expected="memory that was allocated and not freed",
            )
        return memory

    def own_memory(self, handle: int) -> Memory:
        """Return an allocation for data that the device itself trusts; refuse foreign memory."""
        memory = self.memory(handle)
        if memory.mapping.foreign is not None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(handle),
                found="shared memory of another program, which can cut it",
                expected="memory of the device for commands, fences and events",
            )
        return memory

    def foreign_of(self, handles: Iterable[int]) -> tuple[ForeignFile, ...]:
        """Return the foreign files behind these allocations; ignore other handles."""
        files = (self._memory[handle].mapping.foreign for handle in handles if handle in self._memory)
        return tuple({id(file): file for file in files if file is not None}.values())

    def resolve(self, at: MemoryAt, size: int, alignment: int = 1) -> Memory:
        """Return the allocation of `at`, after checking that `size` bytes from its offset lie inside."""
        memory = self.memory(at.memory)
        # subtraction instead of addition: hostile offsets cannot overflow in any language
        if at.offset > memory.size or size > memory.size - at.offset:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(at.memory),
                found=f"bytes {at.offset} to {at.offset + size}",
                expected=f"a range inside its {memory.size} bytes",
            )
        if (memory.offset + at.offset) % alignment:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_ALIGNMENT,
                describe(at.memory),
                found=f"offset {at.offset}",
                expected=f"a multiple of {alignment}",
            )
        return memory

    def resolve_target(self, at: MemoryAt, size: int, alignment: int = 1) -> Memory:
        """Return the same for a range that a command writes; refuse memory imported for reading only."""
        memory = self.resolve(at, size, alignment)
        if memory.mapping.read_only:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(at.memory),
                found="imported for reading only",
                expected="memory that the device may write",
            )
        return memory

    def target(self, at: MemoryAt, size: int, alignment: int = 1) -> Bytes:
        """Return `size` bytes of client memory at `at`, which a command writes."""
        memory = self.resolve_target(at, size, alignment)
        return memory.array[at.offset : at.offset + size]

    def graph(self, handle: int) -> EngineImage:
        """Return the image of an initialised graph; refuse a stale, unknown or uninitialised one."""
        image = self._graphs.get(handle)
        if image is None:
            self._read_messages()
            image = self._graphs.get(handle)
        if image is None:
            raise refuse(
                ZeResult.ERROR_UNINITIALIZED,
                describe(handle),
                found="not an initialised graph of this context",
                expected="a live graph after its initialisation",
                hint="call graph initialize first",
            )
        return image

    def graphs_of(self, image: int) -> tuple[int, ...]:
        """Return the graphs of an image."""
        return tuple(handle for handle, each in self._graphs.items() if each.number == image)

    def scratch(self, size: int) -> StagingBuffer:
        """Return a staging buffer of at least `size` bytes, shared by all steps of this context.

        Steps run one at a time, and the content is void when the next begins.
        """
        scratch = self._scratch
        if scratch is None or scratch.array.size < size:
            # steps bound to an old buffer keep it: growing by half limits their number
            least = 0 if scratch is None else scratch.array.size * 3 // 2
            scratch = self._scratch = self.take_staging(max(size, least))
        return scratch

    def drop_scratch(self) -> None:
        """Release the scratch buffer; steps bound to it keep it."""
        self._scratch = None

    def take_staging(self, size: int) -> StagingBuffer:
        """Return a new staging buffer, counted on the session."""
        return self.staging.take(size, self._account)
