"""What the parts of a session share: whose it is, its tables of objects, and the way to answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.handles import HandleKind
from softnpu.emulator.supervisor.limits import CountedTable, Quota
from softnpu.emulator.supervisor.memory import Allocation
from softnpu.emulator.supervisor.objects import Context, Graph, Queue
from softnpu.emulator.supervisor.users import User

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.supervisor import Supervisor

Post = Callable[[int, msg.Message, Sequence[int]], None]
"""Answers the request of this number, with descriptors that stay the caller's."""


@dataclass
class Owned:
    """An allocation and the context it belongs to."""

    context: Context
    allocation: Allocation


class SessionState:
    """The objects of one session. `open` until its client is gone; `memory_used` in bytes as asked for."""

    def __init__(self, supervisor: Supervisor, user: User, post: Post) -> None:
        limits = supervisor.limits
        self.supervisor = supervisor
        self.user = user
        self.post = post
        self.open = True
        self.memory_used = 0
        self.segments = Quota(
            supervisor.settings.limits.session_segments,
            "session-segments",
            "segments",
            "this session",
            "memory allocation",
        )
        self.contexts: CountedTable[Context] = CountedTable(
            HandleKind.CONTEXT, limits.contexts, "session-contexts", user.handles
        )
        self.memory: CountedTable[Owned] = CountedTable(
            HandleKind.MEMORY, limits.allocations, "session-allocations", user.handles
        )
        self.queues: CountedTable[Queue] = CountedTable(
            HandleKind.QUEUE, limits.queues, "session-queues", user.handles, user.queues
        )
        self.graphs: CountedTable[Graph] = CountedTable(
            HandleKind.GRAPH, limits.graphs, "session-graphs", user.handles, user.graphs
        )

    def count_memory(self, size: int, segments: int) -> None:
        """Counts `size` more bytes and memory files (fewer if negative) as held."""
        self.memory_used += size
        self.segments.take(segments)
        self.user.memory.take(size)
        self.user.take_segments(segments)
