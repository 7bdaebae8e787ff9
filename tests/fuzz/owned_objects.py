"""A session's holdings, tracked from its answers, to check which requests must be refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records

HANDLE_FIELDS = {"context": "contexts", "queue": "queues", "graph": "graphs", "stream": "streams"}


@dataclass
class Held:
    """A live object: its context, its bytes, and whether it is a queue's ring."""

    context: int
    size: int = 0
    ring: bool = False


@dataclass
class OwnedObjects:
    """Live objects by handle, and handles that were once live."""

    contexts: dict[int, Held] = field(default_factory=dict)
    memory: dict[int, Held] = field(default_factory=dict)
    queues: dict[int, Held] = field(default_factory=dict)
    graphs: dict[int, Held] = field(default_factory=dict)
    streams: dict[int, Held] = field(default_factory=dict)
    rings: dict[int, int] = field(default_factory=dict)
    stale: list[int] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    """Rings of queues being destroyed: they may be freed early."""

    def dead_handle(self, fields: dict[str, Any]) -> bool:
        """Return whether a request with these fields names a missing object: it must be refused."""
        for name, kind in HANDLE_FIELDS.items():
            if name in fields:
                value = fields[name]
                if not isinstance(value, int) or value not in getattr(self, kind):
                    return True
        memory = fields.get("memory")
        if not isinstance(memory, list | tuple):
            return False
        return any(
            not isinstance(handle, int) or (handle not in self.memory and handle not in self.leaving)
            for handle in memory
        )

    def apply(self, tag: str, fields: dict[str, Any], answer: msg.Answer) -> None:
        """Record a successful request."""
        match answer:
            case msg.ContextCreated():
                self.contexts[answer.context] = Held(answer.context)
            case msg.MemAllocated():
                size = answer.segment_size if tag == "mem_import" else fields["size"]
                if answer.sparse and tag == "mem_alloc":
                    size = 0  # it counts by its pages, and none are used
                self.memory[answer.memory] = Held(fields["context"], size)
            case msg.QueueCreated():
                size = records.ring_size(fields["slots"])
                self.queues[answer.queue] = Held(fields["context"])
                self.memory[answer.ring.memory] = Held(fields["context"], size, ring=True)
                self.rings[answer.queue] = answer.ring.memory
            case msg.GraphCreated():
                if fields["context"] in self.contexts:
                    self.graphs[answer.graph] = Held(fields["context"])
            case msg.MetricStreamOpened():
                self.streams[answer.stream] = Held(fields["context"])
            case msg.Ok():
                self._ended(tag, fields)

    def _ended(self, tag: str, fields: dict[str, Any]) -> None:
        if tag == "context_destroy":
            gone = fields["context"]
            for table in (self.memory, self.queues, self.graphs, self.streams, self.contexts):
                for handle in [handle for handle, held in table.items() if held.context == gone]:
                    del table[handle]
                    self.stale.append(handle)
        elif tag == "mem_free":
            for handle in fields["memory"]:
                self.memory.pop(handle, None)
                self.stale.append(handle)
        elif tag == "queue_destroy":
            self.queues.pop(fields["queue"])
            ring = self.rings.pop(fields["queue"])
            self.memory.pop(ring, None)
            self.leaving.add(ring)
            self.stale += [fields["queue"], ring]
        elif tag == "graph_destroy":
            self.graphs.pop(fields["graph"], None)
            self.stale.append(fields["graph"])
        elif tag == "metric_stream_close":
            self.streams.pop(fields["stream"], None)
            self.stale.append(fields["stream"])

    def allocated(self, context: int) -> int:
        """Return the bytes of a context that the daemon must count."""
        return sum(held.size for held in self.memory.values() if held.context == context)
