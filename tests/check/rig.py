"""What small wrong programs are made of: a context with queues, and short ways to append commands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from softnpu.driver import CommandList, CommandQueue, Context, Driver, Event, Fence, Graph, ZeError
from softnpu.driver.graph_source import GraphSource
from tests.conformance.models import weighted_sum

BYTES = 8192
HALF = BYTES // 2
MOMENT_NS = 20_000_000
Append = Callable[[CommandList], None]
Program = Callable[["Rig", bool], None]
KINDS: dict[str, str] = {}
PROGRAMS: dict[str, Program] = {}


class Rig:
    """A context with three queues, and short ways to make what programs need."""

    def __init__(self, driver: Driver) -> None:
        self.context: Context = driver.devices[0].create_context()
        self.queues: list[CommandQueue] = [self.context.create_command_queue() for _ in range(3)]
        self.one, self.two, self.three = self.queues

    def memory(self, value: int | None = 1, size: int = BYTES) -> Any:
        """Return memory full of `value`; fresh memory without one."""
        memory = self.context.alloc_host(size)
        if value is not None:
            memory.view()[:] = value
        return memory

    def list(self, *appends: Append) -> CommandList:
        """Return a closed list."""
        commands = self.context.create_command_list()
        for append in appends:
            append(commands)
        commands.close()
        return commands

    def event(self) -> Event:
        """Return an event in a pool of its own."""
        return self.context.create_event_pool(1).create_event(0)

    def submit(self, queue: CommandQueue, *appends: Append) -> Fence:
        """Submit a list; return its fence."""
        fence = queue.create_fence()
        queue.execute_command_lists([self.list(*appends)], fence)
        return fence

    def graph(self) -> Graph:
        """Return a graph: two inputs, one output, of `SIZE` bytes."""
        with tempfile.TemporaryDirectory() as folder:
            xml = Path(folder, "sum.xml")
            model = weighted_sum()
            xml.write_bytes(model.xml)
            xml.with_suffix(".bin").write_bytes(model.weights)
            return self.context.create_graph(GraphSource.from_ir(xml))

    def end(self) -> None:
        """Wait for everything, and destroy it."""
        for queue in self.queues:
            with suppress(ZeError):
                queue.synchronize()
        self.context.destroy()


def program(kind: str) -> Callable[[Program], Program]:
    """Register a program whose wrong form has findings of this kind."""

    def add(function: Program) -> Program:
        KINDS[function.__name__] = kind
        PROGRAMS[function.__name__] = function
        return function

    return add


def fill(memory: Any, size: int = BYTES, offset: int = 0, **events: Any) -> Append:
    """Append a fill of these bytes."""
    return lambda commands: commands.append_memory_fill(memory.address + offset, b"\7", size, **events)


def copy(target: Any, source: Any, size: int = BYTES, to: int = 0, at: int = 0, **events: Any) -> Append:
    """Append a copy of these bytes."""
    return lambda commands: commands.append_memory_copy(
        target.address + to, source.address + at, size, **events
    )


def barrier(commands: CommandList) -> None:
    """Append a barrier."""
    commands.append_barrier()


def infer(graph: Graph, left: Any, right: Any, output: Any, **events: Any) -> Append:
    """Append an inference."""

    def append(commands: CommandList) -> None:
        for index, memory in enumerate((left, right, output)):
            graph.set_argument_value(index, memory)
        commands.append_graph_execute(graph, **events)

    return append


def held(rig: Rig, *appends: Append) -> tuple[Fence, Event]:
    """Submit a list that does not begin before the event is signalled."""
    event = rig.event()
    return rig.submit(rig.one, lambda commands: commands.append_wait_on_events([event]), *appends), event


def let_go(fence: Fence, event: Event) -> None:
    """Signal the event, and wait."""
    event.host_signal()
    fence.host_synchronize()


def in_child(function: Callable[[], None]) -> int:
    """Run a function in a forked child; return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid
