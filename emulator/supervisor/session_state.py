"""What the parts of a session share: whose it is, its tables of objects, and the way to answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.supervisor.memory import Allocation
from softnpu.emulator.supervisor.objects import Context, Graph, Queue

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

    def __init__(self, supervisor: Supervisor, post: Post) -> None:
        limits = supervisor.limits
        self.supervisor = supervisor
        self.post = post
        self.open = True
        self.memory_used = 0
        self.contexts: HandleTable[Context] = HandleTable(HandleKind.CONTEXT, limits.contexts)
        self.memory: HandleTable[Owned] = HandleTable(HandleKind.MEMORY, limits.allocations)
        self.queues: HandleTable[Queue] = HandleTable(HandleKind.QUEUE, limits.queues)
        self.graphs: HandleTable[Graph] = HandleTable(HandleKind.GRAPH, limits.graphs)
