"""What a client holds: a session, a context, queues, and models on the device that are ready to run."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from softnpu.driver import Allocation, CommandList, CommandQueue, Context, Driver, Fence, Graph, GraphSource
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.interface.messages import CacheOptions
from softnpu.tools.stress.subjects import Array, Samples, Subject, largest_difference

WAIT_S: Final = 60.0
"""Whoever waits longer for the device has found a hang: an engine reset under load takes a few seconds."""
_KEPT: Final = 3
_CACHE_BYTES: Final = 64 << 20


class Stuck(Exception):
    """A wait that did not end."""


class Wrong(Exception):
    """A result that is not the reference's."""


def waited(fence: Fence, what: str) -> None:
    """Waits for a submission. Raises `Stuck` when it takes too long."""
    start = time.monotonic()
    if not fence.host_synchronize(int(WAIT_S * 1e9)):
        raise Stuck(f"{what} had not ended after {time.monotonic() - start:.1f} s")


class Loaded:
    """A graph with memory for its arguments, and a list for each turn: states change between two places."""

    def __init__(self, context: Context, graph: Graph, subject: Subject, samples: Samples) -> None:
        self.graph = graph
        self.context = context
        self.subject = subject
        self.samples = samples
        arguments = graph.meta.arguments
        self.memory = [context.alloc_host(argument.byte_size) for argument in arguments]
        self._lists = [self.record(self.memory)]
        if graph.meta.states:
            crossed = list(self.memory)
            for state in graph.meta.states:
                crossed[state.input], crossed[state.output] = crossed[state.output], crossed[state.input]
            self._lists.append(self.record(crossed))

    def record(self, places: Sequence[Allocation]) -> CommandList:
        """A closed list with one execution."""
        commands = self.context.create_command_list()
        for index, place in enumerate(places):
            self.graph.set_argument_value(index, place)
        commands.append_graph_execute(self.graph)
        commands.close()
        return commands

    def submit(self, queue: CommandQueue, sample: int, step: int = 0) -> Fence:
        """Writes the inputs and submits one inference."""
        self.feed(sample, step)
        fence = queue.create_fence()
        self.submit_fed(queue, fence, step)
        return fence

    def submit_fed(self, queue: CommandQueue, fence: Fence, step: int = 0) -> None:
        """Submits one inference of what was fed."""
        queue.execute_command_lists([self._lists[step % len(self._lists)]], fence)

    def feed(self, sample: int, step: int = 0) -> None:
        """Writes the inputs, and over what the outputs were before."""
        if step == 0:
            self.reset_states()
        for memory, array in zip(self.memory, self.samples.inputs(sample, step), strict=False):
            memory.view()[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        for index in self.output_indices():
            self.memory[index].view()[:] = 0xA5  # what the device does not write shows

    def infer(self, queue: CommandQueue, sample: int) -> None:
        """One sample from its first step to the last, each checked."""
        for step in range(self.subject.steps):
            waited(self.submit(queue, sample, step), f"inference of '{self.subject.name}'")
            self.check(sample, step)

    def check(self, sample: int, step: int = 0) -> None:
        """Raises `Wrong` unless the outputs are the reference's, bit by bit."""
        found = [self.memory[index].view() for index in self.output_indices()]
        compare(found, self.samples.outputs(sample, step), f"'{self.subject.name}', sample {sample}")

    def output_indices(self) -> list[int]:
        """The arguments that are outputs of the model, without its states."""
        arguments = self.graph.meta.arguments
        first = next(index for index, argument in enumerate(arguments) if not argument.input)
        return list(range(first, first + self.subject.outputs))

    def reset_states(self) -> None:
        """Writes the initial values."""
        for state in self.graph.meta.states:
            place = self.memory[state.input].view()
            count = -(-len(place) // max(1, len(state.initial)))
            place[:] = np.frombuffer(state.initial * count, np.uint8)[: len(place)]


def compare(found: Sequence[Array], expected: Sequence[Array], what: str) -> None:
    """Raises `Wrong` unless the bytes are equal; says by how much they differ."""
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        raw = bytes(one[: other.nbytes])
        if raw != other.tobytes():
            array = np.frombuffer(raw, other.dtype).reshape(other.shape)
            count = int(np.count_nonzero(array != other))
            largest = largest_difference(array, other)
            raise Wrong(f"{what}: output {index}: {count} of {other.size} numbers, by up to {largest:g}")


class Session:
    """A connection with one context; models stay loaded until others need the room."""

    def __init__(self, socket: Path, subjects: Sequence[tuple[Subject, Samples]], cache: Path) -> None:
        self.socket = socket
        self.driver = Driver.open(socket, autostart=False)
        device = self.driver.devices[self.driver.session % len(self.driver.devices)]
        self.context = device.create_context()
        self.queue = self.context.create_command_queue()
        self.other_queue = self.context.create_command_queue("high")
        self.subjects = subjects
        self._cache = cache
        self._loaded: OrderedDict[int, Loaded] = OrderedDict()

    def loaded(self, subject: int) -> Loaded:
        """A model on the device, compiled if it is not there."""
        held = self._loaded.pop(subject, None) or self.compiled(subject)
        self._loaded[subject] = held
        while len(self._loaded) > _KEPT:
            self._loaded.popitem(last=False)
        return held

    def drop(self, subject: int) -> None:
        """Forgets a model, if it is loaded."""
        self._loaded.pop(subject, None)

    def graph(self, subject: int, cached: bool = True) -> Graph:
        """A model compiled anew, or out of the cache of this run; not loaded."""
        cache = CacheOptions(directory=str(self._cache), limit=_CACHE_BYTES) if cached else None
        with GraphSource.from_ir(self.subjects[subject][0].path) as source:
            return compile_source(self.context, source, cache=cache)

    def compiled(self, subject: int, cached: bool = True) -> Loaded:
        """The same, loaded."""
        return self.of(subject, self.graph(subject, cached))

    def of(self, subject: int, graph: Graph) -> Loaded:
        """A graph of this model, loaded."""
        graph.initialize()
        return Loaded(self.context, graph, *self.subjects[subject])

    def close(self) -> None:
        """The orderly end."""
        self._loaded.clear()
        self.driver.destroy()
