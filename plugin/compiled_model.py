"""`openvino.CompiledModel` for the emulated NPU."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from softnpu.driver import CommandList, CommandQueue, Context, Graph
from softnpu.emulator.interface.blob import GraphMeta
from softnpu.plugin.errors import NpuError, PropertyError, translated
from softnpu.plugin.infer_request import InferRequest
from softnpu.plugin.ports import Port, PortKey, make_ports
from softnpu.plugin.properties import QueueProperties
from softnpu.plugin.results import Results


class CompiledModel:
    """A model on the device. Ports and results are those of `openvino`; safe to use from many threads."""

    def __init__(self, context: Context, graph: Graph, queue: QueueProperties) -> None:
        self.context = context
        self.graph = graph
        self.input_ports, self.output_ports = make_ports(graph.meta)
        self._queue_properties = queue
        self._lock = threading.Lock()
        self._own_request: InferRequest | None = None
        self._staged_bytes = 0
        # what the finalizer destroys: the queue that is in use, if any
        self._queues: list[CommandQueue] = []
        self._release = weakref.finalize(self, _destroy, graph, self._queues)
        self._release.atexit = False  # the daemon takes everything back when the process ends

    # ------------------------------------------------------------ as in openvino

    @property
    def inputs(self) -> list[Port]:
        return list(self.input_ports)

    @property
    def outputs(self) -> list[Port]:
        return list(self.output_ports)

    def input(self, key: PortKey = 0) -> Port:
        """An input by index or name. Raises `InputError`."""
        return self.input_ports[self.input_ports.find(key)]

    def output(self, key: PortKey = 0) -> Port:
        """An output by index or name. Raises `InputError`."""
        return self.output_ports[self.output_ports.find(key)]

    def create_infer_request(self) -> InferRequest:
        """A request with tensors of its own in device memory."""
        with translated(f"model '{self.meta.name}', infer request", NpuError):
            return InferRequest(self)

    def __call__(
        self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False
    ) -> Results:
        """One inference with a request that the model keeps for this. Not for several threads at once."""
        if self._own_request is None:
            self._own_request = self.create_infer_request()
        return self._own_request.infer(inputs, share_inputs=share_inputs, share_outputs=share_outputs)

    def get_property(self, name: str) -> Any:
        """A property of the compiled model, as it was compiled. Raises `PropertyError` for an unknown one."""
        known = {"NETWORK_NAME": self.meta.name, **self.meta.config}
        if name not in known:
            raise PropertyError(
                f"property {name}: not known of a compiled model; expected one of {', '.join(sorted(known))}"
            )
        return known[name]

    # ------------------------------------------------------------ beyond openvino

    @property
    def meta(self) -> GraphMeta:
        """What the compiler says of the model."""
        return self.graph.meta

    @property
    def compile_ms(self) -> float:
        """Milliseconds that the compiler took."""
        return self.graph.compile_ms

    @property
    def load_ms(self) -> float:
        """Milliseconds that the device took to load it; 0 when another model of this content was there."""
        return self.graph.load_ms

    @property
    def staged_bytes(self) -> int:
        """Bytes that were copied because a tensor of the user did not lie in device memory."""
        return self._staged_bytes

    def count_staged(self, size: int) -> None:
        """Counts copied bytes."""
        with self._lock:
            self._staged_bytes += size

    def queue(self) -> CommandQueue:
        """The queue of this model; a fresh one after the device gave up on the last."""
        with self._lock:
            if self._queues and not self._queues[0].lost:
                return self._queues[0]
            if self._queues:
                self._queues.pop().destroy()
            chosen = self._queue_properties
            queue = self.context.create_command_queue(chosen.priority, chosen.turbo)
            self._queues.append(queue)
            return queue

    def record(self, places: list[Any]) -> CommandList:
        """A closed command list with one inference on these places, in the order of the arguments."""
        commands = self.context.create_command_list()
        with self._lock:  # a graph has one set of arguments at a time
            for index, place in enumerate(places):
                self.graph.set_argument_value(index, place)
            commands.append_graph_execute(self.graph)
        commands.close()
        return commands


def _destroy(graph: Graph, queues: list[CommandQueue]) -> None:
    for queue in queues:
        queue.destroy()
    graph.destroy()
