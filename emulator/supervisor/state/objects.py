"""The objects of a session: contexts, allocations, queues, graphs. Records without behaviour."""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.supervisor.held_descriptors import NO_DESCRIPTOR, HeldDescriptor
from softnpu.emulator.supervisor.limits import Account
from softnpu.emulator.supervisor.state.helper_socket import HelperSocket
from softnpu.emulator.supervisor.state.images import Image
from softnpu.emulator.supervisor.state.memory import Allocation, ContextMemory
from softnpu.emulator.supervisor.state.usage import SessionUsage

Activity = tuple[tuple[int, int], ...]
"""The queues of a context, each with how many of its submissions have ended."""
PRIORITIES = {"low": 0, "normal": 1, "high": 2}


class Queue(msgspec.Struct):
    """A command queue: its ring in memory, and its record in the queue states of the device."""

    context: Context
    ring: Allocation
    slots: int
    priority: int
    turbo: bool
    state: int
    background: bool = False
    handle: int = 0
    told: bool = False
    # the submission that must not run again, its result, and why this queue runs nothing from now on
    poisoned: int = 0
    poisoned_info: ErrorInfo | None = None
    lost: ErrorInfo | None = None
    # how many engines have ended under a submission, and under one command of it
    attempted: int = 0
    attempted_step: int = 0
    attempts: int = 0
    attempts_in_all: int = 0


class Graph(msgspec.Struct):
    """A graph handle; `initialized` once its image is on the device for it.

    `counts`: among the users of the image.
    """

    context: Context
    image: Image
    handle: int = 0
    initialized: bool = False
    counts: bool = False


class Idleness(msgspec.Struct):
    """When a context gives back memory by itself: after `after_ms` without work, if `enabled`.

    `chosen`: the program has said so. `released`: the activity when it has last given back what it could,
    with `released_slow` also images that take long to load. `seen`: the activity that has not changed
    `since` then (CLOCK_MONOTONIC).
    """

    enabled: bool = True
    after_ms: int = 30_000
    chosen: bool = False
    released: Activity | None = None
    released_slow: bool = False
    seen: Activity | None = None
    since: float = 0.0


class Context(msgspec.Struct):
    """A context on the device with the index `device`. `number` is unique over all sessions of the daemon.

    `ban_key`: what resets that its submissions cause are counted by. `usage`: of its session. `told`: an
    engine knows it, or there was none.
    `bytes`, `segments`, `address_space`: what it counts for, until the engine has dropped it as well.
    `unmapping`: sizes of sparse segments that were freed, and that the engine may still map. `helpers`:
    the sockets of its helpers for kernels, by their names.
    """

    number: int
    device: int
    doorbell: HeldDescriptor = NO_DESCRIPTOR
    session: int = 0
    ban_key: str = ""
    usage: SessionUsage = msgspec.field(default_factory=SessionUsage)
    handle: int = 0
    memory: ContextMemory = msgspec.field(default_factory=ContextMemory)
    allocations: dict[int, Allocation] = msgspec.field(default_factory=dict)
    queues: dict[int, Queue] = msgspec.field(default_factory=dict)
    graphs: dict[int, Graph] = msgspec.field(default_factory=dict)
    idle: Idleness = msgspec.field(default_factory=Idleness)
    bytes: Account = msgspec.field(default_factory=Account)
    segments: Account = msgspec.field(default_factory=Account)
    address_space: Account = msgspec.field(default_factory=Account)
    unmapping: dict[int, int] = msgspec.field(default_factory=dict)
    told: bool = False
    helpers: dict[str, HelperSocket] = msgspec.field(default_factory=dict)

    def count(self) -> None:
        """Update its accounts; a no-op if it is closed and still charged."""
        if self.doorbell < 0:
            return
        self.bytes.set(self.memory.allocated)
        # the doorbell is a descriptor too, and so are those of helpers
        self.segments.set(1 + len(self.memory.segments) + len(self.memory.unmapping) + len(self.helpers))
        self.address_space.set(self.memory.address_space + sum(self.unmapping.values()))

    def give_back(self) -> None:
        """Clear its accounts, and close what was kept for the engine: its memory is unused."""
        self.memory.let_go()
        for account in (self.bytes, self.segments, self.address_space):
            account.close()

    def close(self) -> None:
        """Close doorbell and sockets, for good; harmless when repeated. Its memory is closed in parts."""
        while self.helpers:
            self.helpers.popitem()[1].close()
        doorbell, self.doorbell = self.doorbell, NO_DESCRIPTOR
        if doorbell >= 0:
            doorbell.close()
