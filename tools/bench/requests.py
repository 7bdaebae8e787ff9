"""Both sides of `bench infer`: requests on the emulated device, and on OpenVINO's CPU device in-process.

Both sides bind all tensors in place and compute from the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import CommandQueue, Context, Graph
from softnpu.emulator.compiler.options import host_precision
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.rounds import interleave, median, median_time
from softnpu.tools.bench.submission import Submission
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.inputs import Array, random_array


class Request(Protocol):
    """One request with its own tensors."""

    outputs: list[Array]

    def run(self) -> None:
        """Run one inference."""

    def start(self) -> None:
        """Start one inference."""

    def wait(self) -> None:
        """Wait for its end."""


class DeviceRequest(Submission):
    """A recorded command list on device memory."""

    def __init__(self, context: Context, queue: CommandQueue, graph: Graph, inputs: Sequence[Array]) -> None:
        self.outputs: list[Array] = []
        for index, argument in enumerate(graph.meta.arguments):
            memory = context.alloc_host(argument.byte_size)
            graph.set_argument_value(index, memory)
            view = memory.view(_dtype(argument.element_type), argument.shape)
            if index < len(inputs):
                view[...] = inputs[index]
            else:
                self.outputs.append(view)
        super().__init__(context, lambda it: it.append_graph_execute(graph), "inference", queue)


class HostRequest:
    """OpenVINO's own request, on tensors allocated by OpenVINO."""

    def __init__(self, compiled: ov.CompiledModel, inputs: Sequence[Array]) -> None:
        self._request = compiled.create_infer_request()
        for index, (port, values) in enumerate(zip(compiled.inputs, inputs, strict=True)):
            tensor = ov.Tensor(port.element_type, port.shape)
            tensor.data[...] = values
            self._request.set_input_tensor(index, tensor)
        self.outputs: list[Array] = []
        for index, port in enumerate(compiled.outputs):
            tensor = ov.Tensor(port.element_type, port.shape)
            self._request.set_output_tensor(index, tensor)
            self.outputs.append(tensor.data)

        self._way: Callable[[], None] = self._in_this_thread

    def take_faster_way(self) -> None:
        """Time both ways that OpenVINO runs one request, and keep the faster one."""
        ways = {way: partial(median_time, way, 3) for way in (self._in_this_thread, self._in_its_own)}
        times = interleave(ways, rounds=5)
        self._way = min(times, key=lambda way: median(times[way]))

    def run(self) -> None:
        self._way()

    def _in_this_thread(self) -> None:
        self._request.infer(share_outputs=True)

    def _in_its_own(self) -> None:
        self._request.start_async()
        self._request.wait()

    def start(self) -> None:
        self._request.start_async()

    def wait(self) -> None:
        self._request.wait()


def read_model(model: BenchModel) -> ov.Model:
    """Read the model with its static shapes."""
    read = ov.Core().read_model(model.path)
    if model.shapes:
        read.reshape({name: list(shape) for name, shape in model.shapes.items()})
    dynamic = [port.any_name for port in read.inputs if port.partial_shape.is_dynamic]
    if dynamic:
        raise ToolError(
            f"model {model.path}",
            found=f"input '{dynamic[0]}' is dynamic",
            expected="static shapes",
            hint=f"give --shape {dynamic[0]}=D,D,...",
        )
    if any(port.partial_shape.is_dynamic for port in read.outputs):
        raise ToolError(
            f"model {model.path}",
            found="the shape of an output depends on the data",
            expected="outputs of static shapes",
            hint="measure it with softnpu infer",
        )
    return read


def random_inputs(ports: Sequence[Any]) -> list[Array]:
    """Return values for these inputs, of static shapes: the same in every run."""
    random = np.random.default_rng(7)
    return [
        random_array(random, port.any_name, port.element_type.to_dtype(), list(port.shape)) for port in ports
    ]


def compile_on_host(model: ov.Model, config: Mapping[str, str]) -> ov.CompiledModel:
    """Compile for OpenVINO's CPU device with the properties of the device's graph; for f16 in f32."""
    chosen = {
        name: value for name, value in config.items() if (name, value) != ("INFERENCE_NUM_THREADS", "0")
    }
    precision = "INFERENCE_PRECISION_HINT"
    if precision in chosen:
        chosen[precision] = host_precision(chosen[precision])
    return ov.Core().compile_model(model, "CPU", chosen | saturated_sums.properties())


def run_in_turn(requests: Sequence[Request], count: int) -> None:
    """Run `count` inferences with all requests in flight: wait for the oldest, then restart it."""
    flight: deque[Request] = deque()
    for number in range(count):
        if len(flight) == len(requests):
            flight.popleft().wait()
        request = requests[number % len(requests)]
        request.start()
        flight.append(request)
    for request in flight:
        request.wait()


def _dtype(element_type: str) -> npt.DTypeLike:
    kind: npt.DTypeLike = getattr(ov.Type, element_type).to_dtype()
    return kind
