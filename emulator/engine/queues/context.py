"""One context on the engine: its handles and decoded programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator

from softnpu.emulator.engine.commands.program_cache import ProgramCache
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.staging import Staging
from softnpu.emulator.engine.share import Share

_MOST_USES = 16384
_PART = 64


class HandleUsers:
    """The queues of a context that have looked up each handle, so that only these are told of its end.

    Some may have forgotten it since.
    """

    def __init__(self) -> None:
        self._queues: dict[int, set[int]] = {}
        self._handles: dict[int, set[int]] = {}  # by queue
        self._count = 0

    def note(self, handle: int, queue: int) -> None:
        """Record that a queue has looked up a handle."""
        queues = self._queues.get(handle)
        if queues is None:
            queues = self._queues[handle] = set()
        elif queue in queues:
            return
        queues.add(queue)
        self._handles.setdefault(queue, set()).add(handle)
        self._count += 1
        if self._count > _MOST_USES:
            self._clear()

    def take(self, handle: int) -> Collection[int] | None:
        """Remove a handle; return the queues that may have looked it up.

        None if there were too many to record: all queues must forget all their lookups.
        """
        if self._count > _MOST_USES:
            self._count = 0
            self._clear()
            return None
        queues = self._queues.pop(handle, ())
        for queue in queues:
            _remove(self._handles, queue, handle)
        self._count -= len(queues)
        return queues

    def drop(self, queue: int) -> None:
        """Forget a queue: a handle that lives long would keep all that ever used it."""
        handles = self._handles.pop(queue, ())
        for handle in handles:
            _remove(self._queues, handle, queue)
        if self._count <= _MOST_USES:
            self._count -= len(handles)

    def _clear(self) -> None:
        self._queues.clear()
        self._handles.clear()


def _remove(sets: dict[int, set[int]], key: int, value: int) -> None:
    sets[key].discard(value)
    if not sets[key]:
        del sets[key]


class EngineContext:
    """A context; all contexts of a session have one `share` of the device's time.

    `rung`: its doorbell was rung since its queues were last checked. `looking`: a check is in progress.
    """

    def __init__(
        self,
        number: int,
        session: int,
        doorbell: int,
        share: Share,
        staging: Staging,
        read_messages: Callable[[], None],
    ) -> None:
        self.number = number
        self.session = session
        self.doorbell = doorbell
        self.share = share
        self.level = 0  # the highest of its queues
        self.rung = self.looking = False
        self.users = HandleUsers()
        self.space = AddressSpace(read_messages, staging, share)
        self.programs = ProgramCache(self.space, share)

    def drop(self, handle: int) -> None:
        """Drop an allocation or a graph, and the programs that use it."""
        self.space.drop(handle)
        self.programs.evict_users(handle)

    def drop_programs_of(self, image: int) -> tuple[int, ...]:
        """Drop the programs that use an image; return its graphs."""
        graphs = self.space.graphs_of(image)
        for graph in graphs:
            self.programs.evict_users(graph)
        return graphs

    def release(self) -> None:
        """Drop whatever can be recreated: decoded programs with their infer requests, and staging."""
        self.programs.clear()
        self.space.drop_scratch()

    def close(self) -> None:
        """Drop everything; mappings live as long as their views."""
        os.close(self.doorbell)
        for _ in self.close_in_parts():
            continue

    def close_in_parts(self) -> Iterator[None]:
        """Drop everything, in parts; the doorbell is closed already."""
        while self.programs.clear_some(_PART):
            yield
        while self.space.clear_some(_PART):
            yield
