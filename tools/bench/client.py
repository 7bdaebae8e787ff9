"""A client of `bench clients`, `memory` and `recovery`, which holds a model with its tensors and runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from softnpu.tools.bench.worker import Worker

if TYPE_CHECKING:
    # the memory of clients is measured: they import only what they use
    from softnpu.tools.bench.model import BenchModel

_WARM_UP = 3


class ClientStart(msgspec.Struct, frozen=True, kw_only=True):
    """`way`: driver, plugin or openvino. `shapes` are static, by input name."""

    way: str
    socket: str
    model: str
    shapes: dict[str, tuple[int, ...]]
    precision: str = "f32"

    @property
    def config(self) -> dict[str, str]:
        """The properties of the compilation."""
        return {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": self.precision,
            "EXECUTION_MODE_HINT": "ACCURACY",
        }


class ClientAnswer(msgspec.Struct, frozen=True):
    """One turn: inferences, seconds until the last ended, bytes staged so far.

    A turn of no time has no inference, but the digest of the outputs: others may still run when a turn ends.
    """

    count: int
    seconds: float
    staged: int
    digest: str = ""


def client(way: str, socket: Path, model: BenchModel, precision: str = "f32") -> Worker:
    """Start a client. A turn lasts the given number of seconds."""
    shapes = {name: tuple(shape) for name, shape in model.shapes.items()}
    start = ClientStart(
        way=way, socket=str(socket), model=str(model.path), shapes=shapes, precision=precision
    )
    return Worker(f"client through {way}", "client:prepare", start)


def prepare(start: ClientStart) -> Callable[[float], ClientAnswer]:
    """Load the model and run it a few times; return the function of a turn."""
    infer, outputs, staged = way(start)
    for _ in range(_WARM_UP):
        infer()

    def turn(seconds: float) -> ClientAnswer:
        clock = time.perf_counter
        begin = clock()
        end, now, count = begin + seconds, begin, 0
        while now < end:
            infer()
            count += 1
            now = clock()
        return ClientAnswer(count, now - begin, staged(), "" if seconds else _digest(outputs))

    return turn


def _digest(outputs: Sequence[Any]) -> str:
    import hashlib  # here: its library takes memory, which is measured before the first turn

    return hashlib.sha256(b"".join(output.tobytes() for output in outputs)).hexdigest()


_Way = tuple[Callable[[], object], Sequence[Any], Callable[[], int]]
"""One inference, the outputs, and the bytes staged so far."""


def way(start: ClientStart) -> _Way:
    """Load the model on the way that `start` names."""
    return _WAYS[start.way](start)


def _through_driver(start: ClientStart) -> _Way:
    from softnpu.driver import Driver, GraphSource
    from softnpu.tools.bench.submission import Submission

    driver = Driver.open(Path(start.socket), autostart=False)
    context = driver.devices[0].create_context()
    with GraphSource.from_ir(Path(start.model)) as source:
        graph = context.create_graph(source, start.config, start.shapes)
    graph.initialize()
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, allocation in enumerate(memory):
        allocation.buffer()[:] = bytes(allocation.size)
        graph.set_argument_value(index, allocation)
    inference = Submission(context, lambda commands: commands.append_graph_execute(graph), "inference")
    outputs = zip(graph.meta.arguments, memory, strict=True)
    return inference.run, [each.buffer() for argument, each in outputs if not argument.input], lambda: 0


def _through_plugin(start: ClientStart) -> _Way:
    from softnpu.plugin import Core
    from softnpu.tools.bench.requests import random_inputs

    core = Core(Path(start.socket))
    compiled = core.compile_model(Path(start.model), "NPU", start.config, shapes=start.shapes)
    request = compiled.create_infer_request()
    for port, values in zip(compiled.inputs, random_inputs(compiled.inputs), strict=True):
        request.get_tensor(port).data[...] = values
    outputs = [tensor.data for tensor in request.output_tensors]
    return lambda: request.infer(share_outputs=True), outputs, lambda: compiled.staged_bytes


def _through_openvino(start: ClientStart) -> _Way:
    from softnpu.tools.bench.model import BenchModel
    from softnpu.tools.bench.requests import HostRequest, compile_on_host, random_inputs, read_model

    model = read_model(BenchModel(Path(start.model).stem, Path(start.model), start.shapes))
    request = HostRequest(compile_on_host(model, start.config), random_inputs(model.inputs))
    for _ in range(_WARM_UP):
        request.run()
    request.take_faster_way()
    return request.run, request.outputs, lambda: 0


_WAYS = {"driver": _through_driver, "plugin": _through_plugin, "openvino": _through_openvino}
