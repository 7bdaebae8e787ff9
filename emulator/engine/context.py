"""What the engine knows of one context: segments, allocations, graphs, queues, decoded programs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.handles import describe
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.interface.shared import SharedMapping

if TYPE_CHECKING:
    from softnpu.emulator.engine.images import EngineImage
    from softnpu.emulator.engine.program import Program
    from softnpu.emulator.engine.queue import EngineQueue
    from softnpu.emulator.engine.scheduler import Share
    from softnpu.emulator.engine.staging import Piece, Staging

Bytes = npt.NDArray[np.uint8]
ProgramKey = tuple[int, int]
_PROGRAMS = 4096
_PROGRAM_BYTES = (
    16 * 1024 * 1024
)  # of all command buffers whose programs are kept; a program takes many times that
_LONGEST_KEPT = 1024 * 1024
_SESSION_BYTES = 256 * 1024 * 1024
_FOR_A_BYTE, _FOR_AN_INFERENCE = 16, 4096
"""What a program takes for each byte of its buffer and for each inference: measured, rounded up."""


class Range(NamedTuple):
    """Bytes of client memory: of which file, from where to where. One file may be mapped twice."""

    file: tuple[int, int]
    start: int
    end: int

    def meets(self, other: Range) -> bool:
        """Whether both have a byte in common."""
        return self.file == other.file and max(self.start, other.start) < min(self.end, other.end)


class Mapping:
    """A segment in this process. `shared` gives words and address, `array` the bytes for numpy.

    `identity` is the same for all mappings of one file.
    """

    __slots__ = ("array", "identity", "shared")

    def __init__(self, fd: int, size: int) -> None:
        try:
            status = os.fstat(fd)
            self.identity = (status.st_dev, status.st_ino)
            self.shared = SharedMapping(fd, size)
        finally:
            os.close(fd)
        self.array: Bytes = np.frombuffer(self.shared.buffer, dtype=np.uint8)


class Memory:
    """An allocation: a part of a mapping."""

    __slots__ = ("array", "mapping", "offset", "size")

    def __init__(self, mapping: Mapping, offset: int, size: int) -> None:
        self.mapping = mapping
        self.offset = offset
        self.size = size
        self.array: Bytes = mapping.array[offset : offset + size]

    def range(self, offset: int, size: int) -> Range:
        """`size` bytes of it from `offset` on."""
        start = self.offset + offset
        return Range(self.mapping.identity, start, start + size)


class EngineContext:
    """One context. Decoded programs are kept until a handle that they use is dropped."""

    def __init__(
        self, number: int, doorbell: int, catch_up: Callable[[], None], share: Share, staging: Staging
    ) -> None:
        self.number = number
        self.session = 0  # whose it is
        self.doorbell = doorbell
        self.share = share
        self.mappings: dict[int, Mapping] = {}
        self.queues: dict[int, EngineQueue] = {}
        self._programs: OrderedDict[ProgramKey, Program] = OrderedDict()
        self._program_bytes = 0
        self._users: dict[int, set[ProgramKey]] = {}
        self._memory: dict[int, Memory] = {}
        self._graphs: dict[int, EngineImage] = {}
        self._catch_up = catch_up
        self.staging = staging
        self._scratch: Piece | None = None

    def close(self) -> None:
        """Lets go of everything; mappings end when the last view of them does."""
        os.close(self.doorbell)
        while self._programs:
            self._forget(next(iter(self._programs)))
        self.queues.clear()
        self._memory.clear()
        self._graphs.clear()
        self.mappings.clear()
        self._scratch = None

    # ------------------------------------------------------------ orders of the supervisor

    def add_memory(self, handle: int, segment: int, offset: int, size: int) -> None:
        self._memory[handle] = Memory(self.mappings[segment], offset, size)

    def drop_memory(self, handles: tuple[int, ...]) -> None:
        for queue in self.queues.values():
            queue.forget_places()
        for handle in handles:
            self._memory.pop(handle, None)
            self._forget_users(handle)

    def add_graph(self, handle: int, image: EngineImage) -> None:
        self._graphs[handle] = image

    def drop_graph(self, handle: int) -> None:
        self._graphs.pop(handle, None)
        self._forget_users(handle)

    # ------------------------------------------------------------ decoded programs

    def program(self, buffer: int, offset: int, data: bytes) -> Program | None:
        """What was decoded from this buffer, if it still holds the same bytes."""
        program = self._programs.get((buffer, offset))
        return program if program is not None and program.data == data else None

    def remember(self, buffer: int, offset: int, program: Program) -> None:
        """Keeps a decoded program for the next submission of the same buffer, unless it is very long.

        Not if a handle of it was dropped while it was decoded: nobody would forget it with that handle.
        """
        key = (buffer, offset)
        if key in self._programs:
            self._forget(key)
        known = all(handle in self._memory or handle in self._graphs for handle in (buffer, *program.uses))
        if len(program.data) > _LONGEST_KEPT or not known:
            return
        self._programs[key] = program
        self._program_bytes += len(program.data)
        self.share.kept_bytes += _size(program)
        for handle in (buffer, *program.uses):
            self._users.setdefault(handle, set()).add(key)
        while self._keeps_too_much():
            self._forget(next(iter(self._programs)))

    def _keeps_too_much(self) -> bool:
        if len(self._programs) > _PROGRAMS or self._program_bytes > _PROGRAM_BYTES:
            return True
        return self.share.kept_bytes > _SESSION_BYTES and bool(self._programs)

    def _forget_users(self, handle: int) -> None:
        # programs hold views and infer requests: kept, they would keep freed memory mapped
        for key in tuple(self._users.get(handle, ())):
            self._forget(key)

    def _forget(self, key: ProgramKey) -> None:
        # a handle that lives on would otherwise keep the keys of all programs that ever used it
        program = self._programs.pop(key)
        self._program_bytes -= len(program.data)
        self.share.kept_bytes -= _size(program)
        for handle in (key[0], *program.uses):
            users = self._users.get(handle)
            if users is not None:
                users.discard(key)
                if not users:
                    del self._users[handle]

    # ------------------------------------------------------------ staging

    def scratch(self, size: int) -> Piece:
        """A piece of staging of at least `size` bytes, the same for all steps of this context.

        One step runs at a time, and needs it to its end only: what lies in it is void when the next begins.
        """
        scratch = self._scratch
        if scratch is None or scratch.array.size < size:
            # steps that were bound to the old piece keep it: by leaps, few are kept
            least = 0 if scratch is None else scratch.array.size * 3 // 2
            scratch = self._scratch = self.staging.take(max(size, least))
        return scratch

    # ------------------------------------------------------------ look-ups of commands

    def memory(self, handle: int) -> Memory:
        """The live allocation of a handle; refuses a stale or unknown one."""
        memory = self._memory.get(handle)
        if memory is None:
            self._catch_up()
            memory = self._memory.get(handle)
        if memory is None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                describe(handle),
                found="not a live allocation of this context",
                expected="memory that was allocated and not freed",
            )
        return memory

    def place(self, at: MemoryAt, size: int, alignment: int = 1) -> Memory:
        """The allocation of `at`, after checking that `size` bytes from its offset lie inside."""
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

    def view(self, at: MemoryAt, size: int, alignment: int = 1) -> Bytes:
        """`size` bytes of client memory at `at`."""
        memory = self.place(at, size, alignment)
        return memory.array[at.offset : at.offset + size]

    def graph(self, handle: int) -> EngineImage:
        """The image of an initialised graph; refuses a stale, unknown or uninitialised one."""
        image = self._graphs.get(handle)
        if image is None:
            self._catch_up()
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


def _size(program: Program) -> int:
    """About how many bytes a decoded program takes."""
    return _FOR_A_BYTE * len(program.data) + _FOR_AN_INFERENCE * program.inferences
