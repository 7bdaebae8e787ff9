"""Models with dynamic dimensions, and executions of their graphs through the driver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset15 as ops

from softnpu.driver import Allocation, Context, Graph, GraphSource
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.blob.container import ArgumentMeta
from softnpu.plugin import CompiledModel, Core

Array = npt.NDArray[Any]
SHAPE = "vpux_ie_shape_"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def source(shape: object, name: str = "x", kind: Any = ov.Type.f32) -> Any:
    """Return an input; `shape` as `openvino.PartialShape` takes it."""
    node = ops.parameter(ov.PartialShape(shape), kind, name=name)
    node.output(0).set_names({name})
    return node


def named(node: Any, name: str, output: int = 0) -> Any:
    """Return a model output for an operation's output, with a tensor name."""
    node.output(output).set_names({name})
    result = ops.result(node.output(output))
    result.set_friendly_name(name)
    return result


def relu(shape: object, kind: Any = ov.Type.f32) -> ov.Model:
    """x -> y = relu(x)."""
    x = source(shape, kind=kind)
    return ov.Model([named(ops.relu(x), "y")], [x], "relu")


def non_zero(shape: object) -> ov.Model:
    """x -> places, i64 [2, ..]: one column for each non-zero number in x."""
    x = source(shape)
    return ov.Model([named(ops.non_zero(x), "places")], [x], "non_zero")


def total(shape: object) -> ov.Model:
    """x, y of the same shape -> sum: OpenVINO refuses other shapes at run time."""
    x, y = source(shape), source(shape, "y")
    return ov.Model([named(ops.add(x, y), "sum")], [x, y], "total")


def sampled(batch: int) -> ov.Model:
    """x [1..9, 1, 4, 4] -> y, sampled by a constant for `batch` samples: OpenVINO refuses other batches."""
    x = source("[1..9,1,4,4]")
    grid = ops.constant(np.random.default_rng(3).random((batch, 2, 2, 2), dtype=np.float32))
    attributes = {"align_corners": False, "mode": "bilinear", "padding_mode": "zeros"}
    return ov.Model([named(ops.grid_sample(ops.relu(x), grid, attributes), "y")], [x], "sampled")


def on_cpu(model: ov.Model, inputs: Sequence[Array]) -> list[Array]:
    """Return the f32 results of OpenVINO's CPU device."""
    compiled = ov.Core().compile_model(model, "CPU", F32)
    results = compiled(list(inputs))
    return [np.array(results[output]) for output in compiled.outputs]


def by_compiler(core: Core, model: ov.Model | Path, **shapes: Any) -> CompiledModel:
    """Compile the model with all dimensions left to the compiler: the plugin splits no batches."""
    return core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}, **shapes)


def pair(core: Core, model: ov.Model) -> tuple[CompiledModel, ov.InferRequest]:
    """Return the model on the device, and a request of OpenVINO's CPU device."""
    return by_compiler(core, model), ov.Core().compile_model(model, "CPU", F32).create_infer_request()


def data_dependent() -> ov.Model:
    """x [?,1..8] -> the places of its non-zero numbers, and all four results of Unique."""
    x = source("[?,1..8]")
    unique = ops.unique(x)
    found = [named(unique, f"u{number}", number) for number in range(4)]
    return ov.Model([named(ops.non_zero(x), "places"), *found], [x], "data_dependent")


def graph_of(context: Context, folder: Path, model: ov.Model, config: dict[str, str] | None = None) -> Graph:
    """Return the graph of a model, on the device."""
    path = folder / "dynamic.xml"
    ov.serialize(model, path)
    with GraphSource.from_ir(path) as ir:
        graph = compile_source(context, ir, config=config)
    graph.initialize()
    return graph


class Execution:
    """Memory for every argument of a graph, and a list that executes it. `room` is by name, in bytes."""

    def __init__(self, context: Context, graph: Graph, room: dict[str, int] | None = None) -> None:
        self.graph = graph
        self.memory: dict[str, Allocation] = {}
        self._arguments = {argument.name: argument for argument in graph.meta.arguments}
        self._queue = context.create_command_queue()
        self._fence = self._queue.create_fence()
        for index, argument in enumerate(graph.meta.arguments):
            size = (room or {}).get(argument.name, argument.byte_size)
            memory = self.memory[argument.name] = context.alloc_host(max(1, size))
            memory.view(np.uint8)[:] = 0xAA
            graph.set_argument_value(index, memory)
        self._commands = context.create_command_list()
        self._commands.append_graph_execute(graph)
        self._commands.close()

    def tell(self, name: str, shape: Sequence[int]) -> None:
        """Write the shape of an input."""
        self.memory[SHAPE + name].view(np.int32, (len(shape),))[:] = list(reversed(shape))

    def told(self, name: str) -> list[int]:
        """Return the shape in a shape tensor."""
        rank = self._arguments[SHAPE + name].shape[0]
        return [int(dim) for dim in self.memory[SHAPE + name].view(np.int32, (rank,))[::-1]]

    def put(self, name: str, array: Array) -> None:
        """Write an input, and its shape if that must be passed."""
        flat = self.memory[name].view(np.uint8)
        flat[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if SHAPE + name in self._arguments:
            self.tell(name, array.shape)

    def output(self, name: str) -> Array:
        """Return a copy of an output in its reported shape."""
        argument = self._arguments[name]
        shape = self.told(name) if argument.is_dynamic else list(argument.shape)
        kind = _dtype(argument)
        return np.array(self.memory[name].view(kind, (math.prod(shape),))).reshape(shape)

    def run(self) -> None:
        """Run one execution. Raise `ZeError` with its result."""
        self._queue.execute_command_lists([self._commands], self._fence)
        assert self._fence.host_synchronize(60_000_000_000), "not ended in time"


def _dtype(argument: ArgumentMeta) -> Any:
    return np.dtype(getattr(ov.Type, argument.element_type).to_dtype())
