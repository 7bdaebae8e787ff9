"""Shorthand for common driver calls in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import (
    Allocation,
    CommandList,
    CommandQueue,
    Context,
    Event,
    Fence,
    Graph,
    GraphSource,
    ZeError,
    ZeResult,
)
from softnpu.driver.memory import MemoryRef
from tests.support.models import Array

SECOND = 1_000_000_000
LONG = 60 * SECOND


def recorded(context: Context, *records: Callable[[CommandList], None]) -> CommandList:
    """Return a closed command list; each of `records` appends to it."""
    commands = context.create_command_list()
    for record in records:
        record(commands)
    commands.close()
    return commands


def waits(context: Context, *events: Event) -> CommandList:
    """Return a closed list that waits for the events."""
    return recorded(context, lambda commands: commands.append_wait_on_events(events))


def fill(context: Context, memory: Allocation, value: int) -> CommandList:
    """Return a closed list that sets every byte of the memory."""
    pattern = bytes([value])
    return recorded(context, lambda commands: commands.append_memory_fill(memory, pattern, memory.size))


def copy(context: Context, target: MemoryRef, source: MemoryRef, size: int) -> CommandList:
    """Return a closed list that copies."""
    return recorded(context, lambda commands: commands.append_memory_copy(target, source, size))


def stamp(context: Context, place: MemoryRef, *events: Event) -> CommandList:
    """Return a closed list that waits for the events and writes a timestamp."""
    return recorded(context, lambda c: c.append_write_global_timestamp(place, wait_events=events))


def barrier(context: Context) -> CommandList:
    """Return a closed list that does nothing."""
    return recorded(context, lambda commands: commands.append_barrier())


def signals(context: Context, event: Event, *before: Callable[[CommandList], None]) -> CommandList:
    """Return a closed list that does this, then signals the event."""
    return recorded(context, *before, lambda commands: commands.append_signal_event(event))


def inference(context: Context, graph: Graph) -> CommandList:
    """Return a closed list that executes a graph."""
    return recorded(context, lambda commands: commands.append_graph_execute(graph))


def lost(fence: Fence) -> ZeError:
    """Return the error of a fence whose submission must end with a lost device."""
    return failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)


def execute(queue: CommandQueue, *lists: CommandList) -> Fence:
    """Submit the lists with a new fence."""
    fence = queue.create_fence()
    queue.execute_command_lists(lists, fence)
    return fence


def run(queue: CommandQueue, *lists: CommandList) -> None:
    """Submit the lists and wait for their end."""
    assert execute(queue, *lists).host_synchronize(LONG), "not done in time"


def check_works(context: Context) -> None:
    """Assert that a new queue of this context executes."""
    with context.create_command_queue() as queue:
        memory = context.alloc_host(64)
        run(queue, recorded(context, lambda c: c.append_memory_fill(memory, b"\x5a", 64)))
        assert bytes(memory.view()) == b"\x5a" * 64


def failure(call: Callable[[], object], result: ZeResult) -> ZeError:
    """Return the error that `call` must raise, with this result."""
    with pytest.raises(ZeError) as caught:
        call()
    assert caught.value.result == result, str(caught.value)
    return caught.value


def refused(call: Callable[[], object], result: ZeResult = ZeResult.ERROR_UNSUPPORTED_FEATURE) -> str:
    """Return the message of `failure`."""
    return str(failure(call, result))


class Loaded:
    """A graph on the device, memory for its arguments, and a list that executes it `times` times."""

    def __init__(
        self, context: Context, xml: Path, times: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self.context = context
        with GraphSource.from_ir(xml) as source:
            self.graph = context.create_graph(source, config)
        self.graph.initialize()
        self.memory = [context.alloc_host(a.byte_size) for a in self.graph.meta.arguments]
        for index, memory in enumerate(self.memory):
            self.graph.set_argument_value(index, memory)
        self.commands = recorded(context, *([lambda c: c.append_graph_execute(self.graph)] * times))

    def feed(self, *inputs: Array) -> None:
        """Write the inputs into device memory."""
        for memory, data in zip(self.memory, inputs, strict=False):
            memory.view(data.dtype, data.shape)[...] = data

    @property
    def outputs(self) -> list[Array]:
        """Copies of the outputs."""
        arguments = self.graph.meta.arguments
        return [
            memory.view(np.dtype(np.float32), argument.shape).copy()
            for memory, argument in zip(self.memory, arguments, strict=True)
            if not argument.input
        ]

    def infer(self, queue: CommandQueue, *inputs: Array) -> list[Array]:
        """Run the list once with these inputs."""
        self.feed(*inputs)
        run(queue, self.commands)
        return self.outputs


def same(found: list[Array], expected: list[Array]) -> bool:
    """Return whether all arrays are bitwise equal."""
    return len(found) == len(expected) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True)
    )
