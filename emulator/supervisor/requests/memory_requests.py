"""The requests of a session on memory."""

from __future__ import annotations

import fcntl
import os
import stat
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

import msgspec

from softnpu.emulator.common import address_range, linux, local_files, native_files
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.chores import PART
from softnpu.emulator.supervisor.limits import Account
from softnpu.emulator.supervisor.reactor import Timer
from softnpu.emulator.supervisor.requests.session_state import Call, OwnedAllocation, SessionState
from softnpu.emulator.supervisor.state.memory import (
    Allocation,
    ContextMemory,
    check_host_memory,
    check_request,
)
from softnpu.emulator.supervisor.state.objects import Context
from softnpu.emulator.supervisor.undoing import undoing

_COUNT_S = 0.25
_MOST_SPARSE = 256
_RETRY_S = 0.005
_RETRIES = 100  # of an allocation, while the engine unmaps what was freed


class _Ended(msgspec.Struct):
    """What a context has left. `on_freed` is called at the end of it."""

    memory: ContextMemory
    allocations: dict[int, Allocation]
    on_freed: Callable[[], object]


class MemoryRequests:
    """Allocations: placed in the memory of the context, counted, announced to the engine."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._timer: Timer | None = None
        self._grown: dict[int, Context] = {}  # since the last check, by number
        self._sparse: dict[int, Context] = {}  # those that may have sparse memory, by number
        self._ended: deque[_Ended] = deque()

    def alloc(self, call: Call, request: msg.MemAlloc) -> None:
        self._alloc(call.number, request, _RETRIES)

    def _alloc(self, number: int, request: msg.MemAlloc, retries: int) -> None:
        context = self._state.contexts.get(request.context)
        check_request(request.kind, request.size, request.alignment)
        self.count_pages()
        self.check(context, 0 if request.sparse else request.size)
        if request.sparse:
            self._check_sparse()
            try:
                self._state.check_address_space(context, request.size)
            except Refused:
                waits = self._state.user.unmapping
                may_fit = self._state.function_of(context).is_unmapping and waits.used < waits.limit
                if not retries or not may_fit:
                    raise
                self._alloc_later(number, request, retries - 1, waits.hold())
                return
        else:
            check_host_memory(request.size)
        allocation, fresh = context.memory.allocate(
            request.size, request.alignment, request.kind, request.exportable, request.sparse
        )
        self._give(number, context, allocation, fresh)

    def _alloc_later(self, number: int, request: msg.MemAlloc, retries: int, waits: Account) -> None:
        """Try again in a moment, until when it counts among those that wait."""

        def again() -> None:
            waits.close()
            self._state.answering(number, self._alloc, number, request, retries)

        self._state.reactor.after(_RETRY_S, again)

    def _give(self, number: int, context: Context, allocation: Allocation, fresh: bool) -> None:
        """Keep an allocation and answer with it."""
        with undoing() as undo:
            handle = self.keep(context, allocation, fresh)
            undo.callback(self.release, OwnedAllocation(context, allocation))
            fds = [allocation.segment.fd] if fresh else []
            self._state.post(number, self.answer(context, handle, fresh), fds)

    def import_segment(self, call: Call, request: msg.MemImport) -> None:
        self._import(call, request, None)

    def import_part(self, call: Call, request: msg.MemImportPart) -> None:
        if request.foreign or request.read_only:
            self._import_foreign(call, request)
        else:
            self._import(call, request, (request.offset, request.size))

    def _import(
        self, call: Call, request: msg.MemImport | msg.MemImportPart, part: tuple[int, int] | None
    ) -> None:
        context = self._state.contexts.get(request.context)
        (fd,) = call.packet.take_fds(1)
        try:
            if not linux.has_seals(fd, linux.SEALS_FIXED_SIZE):
                raise _bad_import("a descriptor that may change its size")
            length = os.fstat(fd).st_size
            start, size = part or (0, length)
            check_request(request.kind, size, 0)
            if size % PAGE:
                raise _bad_import(f"a descriptor of {size} bytes")
            if start < 0 or start % PAGE or size > length - start:
                raise _bad_import(f"{size} bytes at {start} of a file of {length} bytes")
            self.check(context, size)
            if not linux.can_map_shared(fd, start):
                # the engine would fail to map it, and every engine after it
                raise _bad_import(f"a descriptor of {length} bytes that cannot be mapped for writing")
            allocation = context.memory.adopt(fd, size, request.kind, start)
            self._give(call.number, context, allocation, fresh=True)
        finally:
            close_untrusted((fd,), self._state.user.uid)

    def _import_foreign(self, call: Call, request: msg.MemImportPart) -> None:
        """Import memory without a size seal; the engine guards itself against truncation."""
        context = self._state.contexts.get(request.context)
        (fd,) = call.packet.take_fds(1)
        try:
            check_request(request.kind, request.size, 0)
            _check_guard()
            if request.read_only:
                _check_for_reading(fd)
            else:
                _check_shared(fd)
            length, offset, size = os.fstat(fd).st_size, request.offset, request.size
            if offset < 0 or offset > length or size > length - offset:
                raise _bad_foreign(f"{size} bytes at {offset} of a file of {length} bytes")
            self.check(context, size)
            _check_mappable(fd, offset // PAGE * PAGE, request.read_only)
            allocation = context.memory.adopt_foreign(
                fd, size, request.kind, offset, read_only=request.read_only
            )
            self._give(call.number, context, allocation, fresh=True)
        finally:
            close_untrusted((fd,), self._state.user.uid)

    def check(self, context: Context, size: int) -> None:
        """Refuse an allocation beyond the limits of this session or its device."""
        self._state.memory.check_room()
        self._state.check_memory(context, size)
        self._state.segments.check()

    def keep(self, context: Context, allocation: Allocation, fresh: bool) -> int:
        """Give an allocation its handle, count it, and announce it to the engine."""
        owned = OwnedAllocation(context, allocation)
        with undoing() as undo:
            undo.callback(self.release, owned)
            handle = allocation.handle = self._state.memory.add(owned)
            context.allocations[handle] = allocation
            self._state.count(context)
            function = self._state.function_of(context)
            if allocation.sparse:
                self._sparse[context.number] = context
                self._watch_pages()
            if fresh:
                function.announce.segment(context, allocation.segment.number)
            function.announce.memory(context, handle)
        return handle

    def answer(self, context: Context, handle: int, fresh: bool) -> msg.MemAllocated:
        allocation = context.allocations[handle]
        return msg.MemAllocated(
            memory=handle,
            segment=allocation.segment.number,
            segment_size=allocation.segment.size,
            offset=allocation.offset,
            fresh=fresh,
            sparse=allocation.sparse or allocation.segment.foreign > 0,
        )

    def free(self, call: Call, request: msg.MemFree) -> None:
        owned = [self._live(handle) for handle in request.memory]
        for item in owned:
            if item.allocation.is_ring:
                raise refuse(
                    ZeResult.ERROR_HANDLE_OBJECT_IN_USE,
                    f"memory {item.allocation.handle:#018x}",
                    found="the ring of a live command queue",
                    expected="other memory",
                    hint="destroy the queue instead",
                )
        if len(set(request.memory)) != len(request.memory):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "memory free",
                found="a handle twice",
                expected="each handle once",
            )
        for item in owned:
            self.release(item)
        self._state.answer_ok(call)

    def _live(self, handle: int) -> OwnedAllocation:
        item = self._state.memory.get(handle)
        if handle not in item.context.allocations:
            # its context was destroyed, and what that left is freed in parts
            self._state.memory.discard(handle)
            self._state.memory.get(handle)
        return item

    def end(
        self, context: Context, allocations: dict[int, Allocation], on_freed: Callable[[], object]
    ) -> None:
        """Free what a destroyed context has left, in parts; then call `on_freed`."""
        self._sparse.pop(context.number, None)
        self._ended.append(_Ended(context.memory, allocations, on_freed))
        self._state.services.chores.add(self._state.user.uid, self._free_some)

    def _free_some(self) -> bool:
        """Free some of what destroyed contexts have left; return whether there is more."""
        left = PART
        while self._ended and left:
            ended = self._ended[0]
            count = min(left, len(ended.allocations))
            for handle in list(islice(reversed(ended.allocations), count)):
                self._state.memory.discard(handle)
                del ended.allocations[handle]
            left -= count + ended.memory.close_some(left - count)
            if not (ended.allocations or ended.memory.segments):
                ended.on_freed()
                self._ended.popleft()
        return bool(self._ended)

    def release(self, item: OwnedAllocation) -> None:
        """Free an allocation."""
        context, allocation = item.context, item.allocation
        self._state.memory.discard(allocation.handle)
        context.allocations.pop(allocation.handle, None)
        segment = allocation.segment.number
        ended = context.memory.free(allocation)
        function = self._state.function_of(context)
        if allocation.handle:
            function.announce.memory_freed(context, allocation.handle)
        if allocation.sparse:
            # a submission that waits may use it for a while: the addresses count until the engine is done
            context.unmapping[segment] = allocation.size
        if allocation.sparse or segment in context.memory.unmapping:
            function.drop_segment(
                context, segment, self._state.reactor.guarded(partial(self._unmapped, context, segment))
            )
        elif ended:
            function.announce.segment_freed(context, segment)
        self._state.count(context)

    def _unmapped(self, context: Context, segment: int) -> None:
        context.memory.unmapped(segment)
        context.unmapping.pop(segment, None)
        self._state.count(context)

    def _watch_pages(self) -> None:
        if self._timer is None:
            self._timer = self._state.reactor.after(_COUNT_S, self._on_timer)

    def _on_timer(self) -> None:
        """Count pages as long as there is sparse memory; end a session that uses more than it may have."""
        self._timer = None
        if not self._state.open or not any(context.memory.sparse for context in self._sparse.values()):
            return
        self._watch_pages()
        self.count_pages()
        grown, self._grown = self._grown, {}
        for context in grown.values():
            try:
                self._state.check_memory(context, 0)
            except Refused as error:
                self._state.end(error.info)
                return

    def count_pages(self) -> None:
        """Count the pages in use by sparse memory."""
        for number, context in list(self._sparse.items()):
            if not context.memory.sparse:
                del self._sparse[number]
                continue
            more = context.memory.count_pages()
            if more:
                self._state.count(context)
            if more > 0:
                self._grown[context.number] = context

    def _check_sparse(self) -> None:
        """Refuse more sparse allocations than can be counted periodically."""
        live = sum(len(context.memory.sparse) for context in self._sparse.values())
        if live >= _MOST_SPARSE:
            raise refuse(
                ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
                "memory allocation",
                found=f"{live} sparse allocations of this session",
                expected=f"at most {_MOST_SPARSE}",
                hint="free some, or allocate memory that is not sparse",
            )


def _check_guard() -> None:
    """Refuse all files without a size seal if the engine cannot guard itself."""
    if not native_files.guard().exists():
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            "import of shared memory",
            found=f"no file {native_files.guard()}",
            expected="the library that guards the engine against a cut",
            hint="install softnpu where there is a C++ compiler, or import memory whose size is sealed",
        )


def _check_shared(fd: int) -> None:
    """Refuse files that the device cannot write, or whose pages may take long, as on a disk."""
    if not linux.is_shared_memory(fd):
        raise _bad_foreign("a file that is not in shared memory")
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise _bad_foreign("a descriptor that is not open for reading and writing")


def _check_for_reading(fd: int) -> None:
    """Refuse files whose pages another program or machine may withhold, and access that nobody needs."""
    if not (linux.is_shared_memory(fd) or local_files.is_local(fd)) or not stat.S_ISREG(os.fstat(fd).st_mode):
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            "import for reading only",
            found="no file of shared memory, nor of a local disk that this daemon sees",
            expected="such a file",
            hint="copy the data into memory of the device",
        )
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "import for reading only",
            found="a descriptor that is open for writing",
            expected="one that is open for reading only",
        )


def _check_mappable(fd: int, start: int, for_reading: bool) -> None:
    """Refuse files sealed against writing, by mapping a page briefly without touching it."""
    try:
        if for_reading:
            address_range.map_pages_for_reading(fd, PAGE, start)
        else:
            address_range.map_pages(fd, PAGE, start)
    except OSError as failure:
        raise _bad_foreign(f"a file that cannot be mapped: {failure.strerror}") from failure


def _bad_foreign(found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        "import of shared memory",
        found=found,
        expected="a part of a file of tmpfs (shm_open, memfd_create), open for reading and writing",
    )


def _bad_import(found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        "memory import",
        found=found,
        expected="whole pages of an exportable allocation, or of a memory file whose size is sealed",
    )
