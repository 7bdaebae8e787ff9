"""What the infer requests of one compiled model share: graph, queue, ports, and the count of copies."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from softnpu.driver import CommandList, CommandQueue, Context, Graph
from softnpu.driver.profiling import ProfilingQuery
from softnpu.plugin.completions import Completions
from softnpu.plugin.ports import make_ports
from softnpu.plugin.properties import QueueProperties
from softnpu.plugin.signature import Signature
from softnpu.plugin.states import initial_arguments


class Strided(NamedTuple):
    """A place for an argument whose elements are not dense: `strides` in elements, innermost first."""

    place: Any
    strides: tuple[int, ...]


class Executable:
    """A graph on the device and the queue that its inferences go through; safe for many threads.

    `initial` is the graph that computes initial values of states, if the model has such.
    """

    def __init__(
        self,
        context: Context,
        graph: Graph,
        queue: QueueProperties,
        signature: Signature,
        initial: Graph | None = None,
    ) -> None:
        initial_arguments(graph.meta, None if initial is None else initial.meta)  # refuses what does not fit
        self.context = context
        self.graph = graph
        self.initial = initial
        self.meta = graph.meta
        self.signature = signature
        self.inputs, self.outputs = make_ports(signature)
        self.staged_bytes = 0
        self.completions = Completions(graph.meta.name)
        self._queue_properties = queue
        self._queue: CommandQueue | None = None
        self._lock = threading.Lock()

    def queue(self) -> CommandQueue:
        """The queue of this model; a fresh one after the device gave up on the last."""
        with self._lock:
            if self._queue is not None and not self._queue.lost:
                return self._queue
            if self._queue is not None:
                self._queue.destroy()
            chosen = self._queue_properties
            self._queue = self.context.create_command_queue(chosen.priority, chosen.turbo)
            if chosen.background:
                self._queue.set_workload_type(True)
            return self._queue

    def set_background(self, background: bool) -> None:
        """WORKLOAD_TYPE for later inferences, also on the queue that replaces a lost one."""
        with self._lock:
            self._queue_properties = msgspec.structs.replace(self._queue_properties, background=background)
            if self._queue is not None and not self._queue.lost:
                self._queue.set_workload_type(background)

    def load(self) -> None:
        """Loads what is not on the device yet."""
        self.graph.initialize()
        if self.initial is not None:
            self.initial.initialize()

    def record(
        self,
        steps: Sequence[Mapping[int, Any]],
        queries: Sequence[ProfilingQuery] = (),
        initial: Mapping[int, Any] | None = None,
    ) -> CommandList:
        """A closed command list with one execution of the graph a step: places by argument.

        A place is memory, an address in it, or `Strided`. Profiles go to the `queries` in turn.
        `initial` has the places of the graph that computes initial values, which runs first.
        """
        commands = self.context.create_command_list()
        with self._lock:  # a graph has one set of arguments at a time
            if initial is not None and self.initial is not None:
                for index, place in initial.items():
                    self.initial.set_argument_value(index, place)
                commands.append_graph_execute(self.initial)
            for number, places in enumerate(steps):
                for index, place in places.items():
                    if isinstance(place, Strided):
                        self.graph.set_argument_value2(index, *place)
                    else:
                        self.graph.set_argument_value(index, place)
                query = queries[number % len(queries)] if queries else None
                commands.append_graph_execute(self.graph, query)
        commands.close()
        return commands

    def count_staged(self, size: int) -> None:
        """Counts copied bytes."""
        with self._lock:
            self.staged_bytes += size
