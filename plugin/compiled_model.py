"""`openvino.CompiledModel` for the emulated NPU."""

from __future__ import annotations

from typing import Any

from softnpu.driver import Context, Graph
from softnpu.emulator.interface.blob import GraphMeta
from softnpu.plugin.errors import NpuError, PropertyError, translated
from softnpu.plugin.executable import Executable
from softnpu.plugin.infer_request import InferRequest
from softnpu.plugin.ports import Port, PortKey
from softnpu.plugin.properties import QueueProperties
from softnpu.plugin.results import Results


class CompiledModel:
    """A model on the device. Ports and results are those of `openvino`; safe to use from many threads."""

    def __init__(self, context: Context, graph: Graph, queue: QueueProperties) -> None:
        self._executable = Executable(context, graph, queue)
        self._own_request: InferRequest | None = None

    # ------------------------------------------------------------ as in openvino

    @property
    def inputs(self) -> list[Port]:
        return list(self._executable.inputs)

    @property
    def outputs(self) -> list[Port]:
        return list(self._executable.outputs)

    def input(self, key: PortKey = 0) -> Port:
        """An input by index or name. Raises `InputError`."""
        ports = self._executable.inputs
        return ports[ports.find(key)]

    def output(self, key: PortKey = 0) -> Port:
        """An output by index or name. Raises `InputError`."""
        ports = self._executable.outputs
        return ports[ports.find(key)]

    def create_infer_request(self) -> InferRequest:
        """A request with tensors of its own in device memory. It keeps the model on the device."""
        with translated(f"model '{self.meta.name}', infer request", NpuError):
            return InferRequest(self._executable)

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
    def context(self) -> Context:
        """The driver's context underneath, for programs that want Level Zero objects."""
        return self._executable.context

    @property
    def meta(self) -> GraphMeta:
        """What the compiler says of the model."""
        return self._executable.meta

    @property
    def compile_ms(self) -> float:
        """Milliseconds that the compiler took."""
        return self._executable.graph.compile_ms

    @property
    def load_ms(self) -> float:
        """Milliseconds that the device took to load it; 0 when another model of this content was there."""
        return self._executable.graph.load_ms

    @property
    def staged_bytes(self) -> int:
        """Bytes that were copied because a tensor of the user did not lie in device memory."""
        return self._executable.staged_bytes
