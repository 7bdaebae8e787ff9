"""A client of `bench memory`: it holds a model with its inputs and outputs, has run it, and waits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from softnpu.emulator.common import linux
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.process import READY, TalkingProcess
from softnpu.tools.shared import failures

_INFERENCES = 3
_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class ClientProcess(TalkingProcess):
    """A process that runs the model through `way`: a key of the `WAYS` of its module."""

    MODULE = "softnpu.tools.bench.client"

    def __init__(self, way: str, socket: Path, model: BenchModel, *more: str) -> None:
        super().__init__(
            f"client through {way}",
            self.MODULE,
            [way, str(socket), str(model.path), json.dumps(dict(model.shapes)), *more],
        )


def _through_driver(socket: Path, model: BenchModel) -> object:
    from softnpu.driver import Driver, GraphSource

    driver = Driver.open(socket, autostart=False)
    context = driver.devices[0].create_context()
    with GraphSource.from_ir(model.path) as source:
        graph = context.create_graph(source, _CONFIG, model.shapes)
    graph.initialize()
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, allocation in enumerate(memory):
        allocation.view().fill(0)
        graph.set_argument_value(index, allocation)
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    queue = context.create_command_queue()
    fence = queue.create_fence()
    for _ in range(_INFERENCES):
        queue.execute_command_lists([commands], fence)
        fence.host_synchronize()
    return driver, memory, commands, queue, fence


def _through_plugin(socket: Path, model: BenchModel) -> object:
    from softnpu.plugin import Core

    compiled = Core(socket).compile_model(model.path, "NPU", _CONFIG, shapes=model.shapes)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        request.get_tensor(port).data.fill(0)
    for _ in range(_INFERENCES):
        request.infer(share_outputs=True)
    return request


WAYS: dict[str, Callable[[Path, BenchModel], object]] = {"driver": _through_driver, "plugin": _through_plugin}


def main(arguments: list[str]) -> int:
    """`WAY SOCKET MODEL SHAPES-JSON PARENT-PID`: says `ready` or what is wrong, ends when its input does."""
    way, socket, path, shapes, parent = arguments
    linux.die_with_parent(int(parent))
    static = {name: tuple(shape) for name, shape in json.loads(shapes).items()}
    try:
        prepared = WAYS[way](Path(socket), BenchModel(Path(path).stem, Path(path), static))
    except failures.expected() as error:
        print(failures.describe(error), flush=True)
        return 1
    print(READY, flush=True)
    sys.stdin.read()
    del prepared
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
