"""The shared part of a compiled model's infer requests: graph, queue, ports, count of copied bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from softnpu.driver import CommandList, CommandQueue
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.ports import make_ports
from softnpu.plugin.requests.completions import Completions

if TYPE_CHECKING:
    from softnpu.driver import ProfilingQuery


class Strided(NamedTuple):
    """Memory of an argument whose elements are not dense: `strides` in elements, innermost first."""

    address: int
    strides: tuple[int, ...]


class Executable:
    """A model on the device and the queue of its inferences; thread-safe."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.context = loaded.context
        self.graph = loaded.graph
        self.initial = loaded.initial
        self.initial_arguments = loaded.initial_arguments
        self.meta = loaded.graph.meta
        self.signature = loaded.signature
        self.inputs, self.outputs = make_ports(loaded.signature)
        self.staged_bytes = 0
        self.completions = Completions(self.meta.name)
        self._queue_properties = loaded.properties.for_queue()
        self._queue: CommandQueue | None = None
        self._lock = threading.Lock()

    def queue(self) -> CommandQueue:
        """Return the queue of this model, a new one after a loss."""
        with self._lock:
            if self._queue is not None and not self._queue.lost:
                return self._queue
            if self._queue is not None:
                self._queue.destroy()
            properties = self._queue_properties
            self._queue = self.context.create_command_queue(properties.priority, properties.turbo)
            if properties.background:
                self._queue.set_workload_type(True)
            if properties.keeps_idle_memory and self.context.idle_optimizations:
                self.context.set_properties(disable_idle_optimizations=True)
            return self._queue

    def set_background(self, background: bool) -> None:
        """Set WORKLOAD_TYPE for later inferences, also for the queue that replaces a lost one."""
        with self._lock:
            self._queue_properties = msgspec.structs.replace(self._queue_properties, background=background)
            if self._queue is not None and not self._queue.lost:
                self._queue.set_workload_type(background)

    def load(self) -> None:
        """Load the graphs that are not on the device yet."""
        self.graph.initialize()
        if self.initial is not None:
            self.initial.initialize()

    def record(
        self,
        bindings: Sequence[Mapping[int, Any]],
        queries: Sequence[ProfilingQuery] = (),
        initial: Mapping[int, Any] | None = None,
    ) -> CommandList:
        """Record a closed command list with one graph execution for each of `bindings` (memory by argument).

        Memory is an array, an address, or `Strided`. Profiles go to the `queries` in turn. `initial` has the
        bindings of the graph that computes initial values, which runs first.
        """
        commands = self.context.create_command_list()
        with self._lock:  # a graph has one set of arguments at a time
            if initial is not None and self.initial is not None:
                for index, memory in initial.items():
                    self.initial.set_argument_value(index, memory)
                commands.append_graph_execute(self.initial)
            for number, binding in enumerate(bindings):
                for index, memory in binding.items():
                    if isinstance(memory, Strided):
                        self.graph.set_argument_value2(index, *memory)
                    else:
                        self.graph.set_argument_value(index, memory)
                query = queries[number % len(queries)] if queries else None
                commands.append_graph_execute(self.graph, query)
        commands.close()
        return commands

    def count_staged(self, size: int) -> None:
        """Add to the count of copied bytes."""
        with self._lock:
            self.staged_bytes += size
