"""What the infer requests of one compiled model share: graph, queue, ports, and the count of copies."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from softnpu.driver import CommandList, CommandQueue, Context, Graph
from softnpu.driver.profiling import ProfilingQuery
from softnpu.plugin.completions import Completions
from softnpu.plugin.ports import make_ports
from softnpu.plugin.properties import QueueProperties
from softnpu.plugin.signature import Signature


class Executable:
    """A graph on the device and the queue that its inferences go through; safe for many threads."""

    def __init__(self, context: Context, graph: Graph, queue: QueueProperties, signature: Signature) -> None:
        self.context = context
        self.graph = graph
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

    def record(self, steps: Sequence[Mapping[int, Any]], query: ProfilingQuery | None = None) -> CommandList:
        """A closed command list with one execution of the graph a step: places by argument."""
        commands = self.context.create_command_list()
        with self._lock:  # a graph has one set of arguments at a time
            for places in steps:
                for index, place in places.items():
                    self.graph.set_argument_value(index, place)
                commands.append_graph_execute(self.graph, query)
        commands.close()
        return commands

    def count_staged(self, size: int) -> None:
        """Counts copied bytes."""
        with self._lock:
            self.staged_bytes += size
