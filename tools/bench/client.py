"""A client of `bench memory`: it holds a model with its inputs and outputs, has run it, and waits."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from softnpu.emulator.common import linux
from softnpu.tools import failures
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.failures import ToolError

READY = "ready"
_START_S = 180.0
_END_S = 10.0
_INFERENCES = 3
_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class ClientProcess:
    """A process that runs the model through `way`: a key of the `WAYS` of its module."""

    MODULE = "softnpu.tools.bench.client"

    def __init__(self, way: str, socket: Path, model: BenchModel, *more: str) -> None:
        self._way = way
        shapes = json.dumps(dict(model.shapes))
        arguments = [way, str(socket), str(model.path), shapes, *more, str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.MODULE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the caller, which ends it
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Return when the model is loaded and the first inferences have ended."""
        words = self.hear(_START_S)
        if words != READY:
            raise self.failure(words)

    def hear(self, deadline_s: float) -> str:
        """The next line that it prints; empty when it has ended."""
        assert self._process.stdout is not None
        heard = select.select([self._process.stdout], [], [], deadline_s)[0]
        return self._process.stdout.readline().decode().strip() if heard else f"silent for {deadline_s:g} s"

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def failure(self, words: str) -> ToolError:
        """The error of a client that has said something else than what it should."""
        return ToolError(
            f"client through {self._way}", found=words or "it died", expected="inferences that end"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=_END_S)


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
