"""One context on the engine: its handles and decoded programs."""

from __future__ import annotations

import os
from collections.abc import Callable

from softnpu.emulator.engine.address_space import AddressSpace
from softnpu.emulator.engine.program_cache import ProgramCache
from softnpu.emulator.engine.scheduler import Share
from softnpu.emulator.engine.staging import Staging


class EngineContext:
    """A context; all contexts of a session have one `share` of the device's time."""

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
        """Drop what can be made again: decoded programs with their infer requests, and staging."""
        self.programs.clear()
        self.space.drop_scratch()

    def close(self) -> None:
        """Drop everything; mappings end when the last view of them does."""
        os.close(self.doorbell)
        self.programs.clear()
        self.space.clear()
