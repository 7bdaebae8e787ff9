"""Limits on what one session, one user and all users together may hold, and their accounting.

Every refusal has the same form: the value found, the limit, and the option that raises it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
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
    memory files, contexts, metric streams and files of graphs (a descriptor of the daemon each). `job_cpu_s`:
    seconds of CPU time of one job.
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
        """Return one user's limit of segments, given this process's descriptor limit."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.user_segments or min(_MOST_SEGMENTS, max(_LEAST_SEGMENTS, soft // 2))


def option_name(field: str) -> str:
    """`user_memory` as the command line has it."""
    return field.replace("_", "-")


class Account:
    """Its owner's amount of some resource; it also counts in all accounts `above`, until closed.

    It is set to the absolute amount, never incremented: after any exception the next change corrects it.
    Nothing remains of a closed account, or one whose owner was never completed. `show` is called after each
    change, also of an account below.
    """

    __slots__ = ("_chain", "_show", "used")

    def __init__(self, *above: Account, show: Callable[[], None] | None = None) -> None:
        self.used = 0
        self._show: list[Callable[[], None]] = [] if show is None else [show]
        self._chain: list[Account] = []
        for account in above:
            self._chain += [account, *account._chain]
            self._show += account._show

    def set(self, used: int) -> None:
        """Set the owner's current amount."""
        self._count(used)
        for show in self._show:
            show()

    def _count(self, used: int) -> None:
        more, self.used = used - self.used, used
        for account in self._chain:
            account.used += more

    def close(self) -> None:
        """Set the amount to 0 for good."""
        if self.used:
            self.set(0)

    def __del__(self) -> None:
        if self.used:
            self._count(0)  # the page that shows it may be gone as well


class Quota(Account):
    """An account with a limit. `whose` and `what` for the refusal, as in `7 queues of user 1000`."""

    __slots__ = ("_name", "_object", "_result", "_what", "_whose", "limit", "refusals")

    def __init__(
        self,
        limit: int,
        name: str,
        what: str,
        whose: str,
        object: str,
        result: ZeResult = ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        above: tuple[Account, ...] = (),
    ) -> None:
        super().__init__(*above)
        self.limit = limit
        self.refusals = 0
        self._name = name
        self._what = what
        self._whose = whose
        self._object = object
        self._result = result

    def check(self, more: int = 1, object: str = "") -> None:
        """Refuse `more` of it, for `object`, beyond the limit, or that of a quota above."""
        if self.used + more <= self.limit:
            for account in self._chain:
                if isinstance(account, Quota):
                    account.check(more, object)
            return
        self.refusals += 1
        found = f"{self.used} {self._what} of {self._whose}"
        if more != 1:
            found = f"{more} {self._what} asked for, {self._whose} has {self.used}"
        hint = f"give some back, or start the daemon with a larger {OPTION} {self._name}"
        if not self._name:
            hint = "give some back"
        expected = f"at most {self.limit}"
        raise refuse(self._result, object or self._object, found=found, expected=expected, hint=hint)

    def hold(self) -> Account:
        """Return an account of one unit, already allowed by `check`."""
        account = Account(self)
        account.set(1)
        return account


def address_space(whose: str, limit: int) -> Quota:
    """Return the quota of sparse memory, used or not."""
    what = "bytes of address space"
    return Quota(limit, "", what, whose, "memory allocation", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)


def loads(limit: int, name: str, whose: str, above: tuple[Account, ...] = ()) -> Quota:
    """The quota of requests that wait until a graph is loaded: all of them are answered in one go."""
    what = "initialisations of graphs under way"
    return Quota(limit, name, what, whose, "graph", ZeResult.ERROR_OUT_OF_HOST_MEMORY, above)


class CountedTable(HandleTable[T], Generic[T]):
    """A table of handles whose objects count for the user as well; `name` is the session's own limit."""

    def __init__(self, kind: HandleKind, limit: int, name: str, *quotas: Quota) -> None:
        super().__init__(kind, limit)
        self._name = name
        self._quotas = quotas
        self._account = Account(*quotas)

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
        self.check_room()
        self._account.set(len(self) + 1)
        return self._store(obj)

    def pop(self, handle: int) -> T:
        """Remove and return the object of `handle`."""
        self.get(handle)
        self._account.set(len(self) - 1)
        return super().pop(handle)

    def discard(self, handle: int) -> None:
        """Remove the object of `handle`, if there is one."""
        with suppress(Refused):
            self.pop(handle)

    def close(self) -> None:
        """Stop counting its objects."""
        self._account.close()
