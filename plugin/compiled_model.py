"""`openvino.CompiledModel` for the emulated NPU."""

from __future__ import annotations

import copy
import io
import threading
import weakref
from collections.abc import Callable
from typing import Any

from openvino.properties import WorkloadType

from softnpu.driver import Context
from softnpu.emulator.blob.container import GraphMeta
from softnpu.plugin.errors import NpuError, PropertyError, translated
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.ports import Port, PortKey, described
from softnpu.plugin.properties import Access, Level, PropertyPairs, access_of, find_at, parse
from softnpu.plugin.remote.remote_context import RemoteContext, remote_context_of
from softnpu.plugin.requests.executable import Executable
from softnpu.plugin.requests.infer_request import InferRequest
from softnpu.plugin.requests.results import Results
from softnpu.plugin.requests.states import VariableState
from softnpu.plugin.signature import Signature


class CompiledModel:
    """A model on the device. Ports and results are those of `openvino`; thread-safe.

    `extra` has texts of programs by name; they are exported and imported with the model.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._executable = Executable(loaded)
        self._properties = loaded.properties
        self.extra = dict(loaded.extra)
        self._throughput: dict[int, float] = {}
        self._throughput_lock = threading.Lock()
        self._own_request: InferRequest | None = None

    # ------------------------------------------------------------ as in openvino

    @property
    def inputs(self) -> list[Port]:
        return list(self._executable.inputs)

    @property
    def outputs(self) -> list[Port]:
        return list(self._executable.outputs)

    def input(self, key: PortKey = 0) -> Port:
        """Return an input by index or name. Raises `InputError`."""
        ports = self._executable.inputs
        return ports[ports.find(key)]

    def output(self, key: PortKey = 0) -> Port:
        """Return an output by index or name. Raises `InputError`."""
        ports = self._executable.outputs
        return ports[ports.find(key)]

    def create_infer_request(self) -> InferRequest:
        """Create a request with its own tensors in device memory. It keeps the model on the device."""
        if not self.is_for_its_device:
            raise NpuError(
                f"model '{self.meta.name}', infer request: compiled for platform {self.meta.platform}; "
                f"expected {self.context.device.info.platform}, the platform of device "
                f"{self._properties.device_name}. Export it, and import it on a device of its platform"
            )
        with translated(f"model '{self.meta.name}', infer request", NpuError):
            self._executable.load()  # not loaded yet with NPU_DEFER_WEIGHTS_LOAD
            # weak, because the model may keep this request: then another object for the same model
            alive, other = weakref.ref(self), copy.copy(self)
            other._own_request = None
            return InferRequest(self._executable, lambda: alive() or other)

    def __call__(
        self,
        inputs: Any = None,
        share_inputs: bool = True,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> Results:
        """Run one inference with a request kept by the model. Not thread-safe."""
        return self._request().infer(inputs, share_inputs, share_outputs, decode_strings=decode_strings)

    def query_state(self) -> list[VariableState]:
        """Return the states of the request used by calling the model."""
        return self._request().query_state()

    def reset_state(self) -> None:
        """Reset the states of the request used by calling the model."""
        self._request().reset_state()

    def export_model(self, model_stream: Any = None) -> io.BytesIO | None:
        """Write the compiled model for `Core.import_model` to a binary stream or a path, or return a stream.

        ENABLE_WEIGHTLESS omits the weights.
        Raises `NpuError`, also when the weights have changed since; `OSError` when a file cannot be written.
        """
        from softnpu.plugin.exported import exporting  # late: not every program exports

        return exporting.export_model(self._loaded, self.extra, model_stream)

    def get_property(self, property: str) -> Any:
        """Read a property of the compiled model. Raises `PropertyError`; docs/properties.md has the table."""
        record = find_at(Level.MODEL, property)
        reader = _READERS.get(record.name)
        return self._properties[record.name] if reader is None else reader(self)

    def set_property(self, properties: PropertyPairs) -> None:
        """Set WORKLOAD_TYPE, the only property that can change after compiling.

        Raises `PropertyError` for other properties.
        """
        values = parse(properties)
        for name in values:
            if find_at(Level.MODEL, name).access_at(Level.MODEL) is Access.RO:
                raise PropertyError(
                    f"property {name}: set on the compiled model '{self.meta.name}', where it is read-only;"
                    " expected it in the config of compile_model"
                )
        if "WORKLOAD_TYPE" in values:
            with translated(f"model '{self.meta.name}', WORKLOAD_TYPE", NpuError):
                self._executable.set_background(values["WORKLOAD_TYPE"] == WorkloadType.EFFICIENT)
        self._properties = self._properties.with_values(values)

    def get_context(self) -> RemoteContext:
        """Return the device's remote context, whose tensors requests use in place."""
        from softnpu.plugin.remote import remote_sharing  # late: it brings `multiprocessing`

        remote_sharing.register()
        return remote_context_of(self.context, f"model '{self.meta.name}', get_context")

    def infer_new_request(self, inputs: Any = None) -> Results:
        """Run one inference with a new request. Thread-safe."""
        return self.create_infer_request().infer(inputs)

    def get_runtime_model(self) -> Any:
        """Raise `NpuError`: only the device knows the executed layers; profiles show them (PERF_COUNT)."""
        raise NpuError(
            f"model '{self.meta.name}', get_runtime_model: the compiled model is a blob, no openvino.Model; "
            "expected use of its ports (inputs, outputs), or of PERF_COUNT and get_profiling_info, which "
            "show its layers"
        )

    def release_memory(self) -> None:
        """Free the tensors of the request kept by the model.

        The program's own requests keep theirs. In OpenVINO this frees scratch memory.
        """
        self._own_request = None

    def __repr__(self) -> str:
        return described("CompiledModel", self._executable.inputs, self._executable.outputs)

    # ------------------------------------------------------------ beyond openvino

    @property
    def signature(self) -> Signature:
        """Names, types, shapes and layouts of the ports, as they are exported."""
        return self._executable.signature

    @property
    def context(self) -> Context:
        """The underlying driver context, for programs that use Level Zero objects."""
        return self._executable.context

    @property
    def meta(self) -> GraphMeta:
        """The compiler's description of the model."""
        return self._executable.meta

    @property
    def is_for_its_device(self) -> bool:
        """Whether the model's platform is that of the device, not another one (NPU_PLATFORM)."""
        return self._loaded.is_for_its_device

    @property
    def build_log(self) -> str:
        """The compiler's log."""
        return self._executable.graph.build_log

    @property
    def compile_ms(self) -> float:
        """Duration of the compilation in milliseconds."""
        return self._executable.graph.compile_ms

    @property
    def load_ms(self) -> float:
        """Duration of loading it onto the device, in milliseconds.

        0 if an equal model was already loaded, and before loading (NPU_DEFER_WEIGHTS_LOAD).
        """
        return self._executable.graph.load_ms

    @property
    def staged_bytes(self) -> int:
        """Bytes copied for user tensors outside device memory."""
        return self._executable.staged_bytes

    # ------------------------------------------------------------ properties

    def _request(self) -> InferRequest:
        if self._own_request is None:
            self._own_request = self.create_infer_request()
        return self._own_request

    def _requirements(self) -> str:
        from softnpu.plugin.exported import exporting

        return exporting.requirements(self._executable.graph)

    def _measured_throughput(self) -> dict[int, float]:
        with self._throughput_lock:
            if not self._throughput:
                from softnpu.plugin.requests import optimal_requests  # late: few programs ask

                self._throughput = optimal_requests.measure(self.create_infer_request)
            return dict(self._throughput)

    def _optimal_requests(self) -> int:
        if self._properties["NPU_MEASURE_OPTIMAL_REQUESTS"]:
            from softnpu.plugin.requests import optimal_requests

            return optimal_requests.fewest(self._measured_throughput())
        return self._properties.optimal_requests()


_READERS: dict[str, Callable[[CompiledModel], Any]] = {
    "SUPPORTED_PROPERTIES": lambda _: access_of(Level.MODEL),
    "LOADED_FROM_CACHE": lambda model: model._loaded.from_cache or model._executable.graph.origin == "cache",
    "NETWORK_NAME": lambda model: model.signature.name,
    "NUM_STREAMS": lambda _: 1,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": CompiledModel._optimal_requests,
    "EXECUTION_DEVICES": lambda model: model._properties.device_name,
    "NPU_MEASURED_THROUGHPUT": CompiledModel._measured_throughput,
    "RUNTIME_REQUIREMENTS": CompiledModel._requirements,
}
