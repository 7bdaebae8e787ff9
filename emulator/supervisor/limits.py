"""What one session, one user and all users together may hold: the numbers, and counting up to them.

Every count ends in the same refusal: what was found, the limit, and the option that raises it.
"""

from __future__ import annotations

import resource
from typing import Generic, TypeVar

import msgspec

from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

T = TypeVar("T")
OPTION = "--limit"
_LEAST_SEGMENTS = 1024
_MOST_SEGMENTS = 24576
SESSION_ADDRESS_SPACE = 16 << 40
FUNCTION_ADDRESS_SPACE = 64 << 40
"""Sparse memory, used or not: an engine maps all of it, and has 128 TiB."""
SEGMENTS_IN_ALL = 49152
"""A process has 65530 mappings (`vm.max_map_count`), and an engine maps every segment."""


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a daemon is started with; memory in bytes, everything else counted.

    `session_*` bound one session, `user_*` all connections of one user (uid) together. `handshakes` are
    connections that have not said hello yet, `handles` contexts, allocations, queues and graphs together,
    `compiles` jobs of the compiler under way, `functions` virtual functions (an engine each), `segments`
    memory files (a descriptor of the daemon each). `job_cpu_s`: seconds of CPU time of one job.
    `user_memory` 0: all there is, or three quarters of it if other users are let in.
    `user_segments` 0: half the descriptors that the daemon may have open, 1024 to 24576.
    """

    session_contexts: int = 64
    session_allocations: int = 65536
    session_queues: int = 1024
    session_graphs: int = 1024
    session_compiles: int = 64
    session_segments: int = 16384
    user_connections: int = 2048
    user_handshakes: int = 256
    user_sessions: int = 2000
    user_memory: int = 0
    user_handles: int = 262144
    user_queues: int = 8192
    user_graphs: int = 8192
    user_compiles: int = 256
    user_functions: int = 64
    job_cpu_s: int = 3600
    user_segments: int = 0

    def check(self) -> None:
        """Refuse limits that cannot work, naming the limit."""
        for name in self.__struct_fields__:
            least = 0 if name in ("user_memory", "user_segments") else 1
            if getattr(self, name) < least:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"setting {OPTION} {option_name(name)}",
                    found=f"{getattr(self, name)}",
                    expected=f"{least} or more",
                )

    def segments_of_user(self) -> int:
        """How many segments one user may have, given the descriptors that this process may open."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.user_segments or min(_MOST_SEGMENTS, max(_LEAST_SEGMENTS, soft // 2))


def option_name(field: str) -> str:
    """`user_memory` as the command line has it."""
    return field.replace("_", "-")


class Quota:
    """A count with a limit. `whose` and `what` for the refusal, as in `7 queues of user 1000`."""

    __slots__ = ("_name", "_object", "_result", "_what", "_whose", "limit", "refusals", "used")

    def __init__(
        self,
        limit: int,
        name: str,
        what: str,
        whose: str,
        object: str,
        result: ZeResult = ZeResult.ERROR_OUT_OF_HOST_MEMORY,
    ) -> None:
        self.limit = limit
        self.used = 0
        self.refusals = 0
        self._name = name
        self._what = what
        self._whose = whose
        self._object = object
        self._result = result

    def check(self, more: int = 1) -> None:
        """Refuse `more` of it beyond the limit."""
        if self.used + more <= self.limit:
            return
        self.refusals += 1
        found = f"{self.used} {self._what} of {self._whose}"
        if more != 1:
            found = f"{more} {self._what} asked for, {self._whose} has {self.used}"
        hint = f"give some back, or start the daemon with a larger {OPTION} {self._name}"
        if not self._name:
            hint = "give some back"
        raise refuse(self._result, self._object, found=found, expected=f"at most {self.limit}", hint=hint)

    def count(self, more: int = 1) -> None:
        """Count `more` of it, which `check` has let pass; what is given back is negative."""
        self.used += more


def address_space(whose: str, limit: int) -> Quota:
    """The quota of sparse memory, used or not."""
    what = "bytes of address space"
    return Quota(limit, "", what, whose, "memory allocation", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)


class CountedTable(HandleTable[T], Generic[T]):
    """A table of handles whose objects count for the user as well; `name` is the session's own limit."""

    def __init__(self, kind: HandleKind, limit: int, name: str, *quotas: Quota) -> None:
        super().__init__(kind, limit)
        self._name = name
        self._quotas = quotas

    def check_room(self) -> None:
        """Refuse with `ERROR_OUT_OF_HOST_MEMORY` when the session or its user is at a limit."""
        try:
            super().check_room()
        except Refused as error:
            hint = f"{error.info.hint}, or start the daemon with a larger {OPTION} {self._name}"
            raise Refused(msgspec.structs.replace(error.info, hint=hint)) from None
        for quota in self._quotas:
            quota.check()

    def add(self, obj: T) -> int:
        """Store `obj` and return its handle."""
        handle = super().add(obj)
        for quota in self._quotas:
            quota.count()
        return handle

    def pop(self, handle: int) -> T:
        """Remove and return the object of `handle`."""
        obj = super().pop(handle)
        for quota in self._quotas:
            quota.count(-1)
        return obj
