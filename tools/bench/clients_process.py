"""A process of `bench clients`: it holds one request, and runs it for as long as its parent asks."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from softnpu.emulator.common import linux
from softnpu.tools.bench.client import ClientProcess
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.process import READY
from softnpu.tools.shared import failures

_LATE_S = 60.0
_WARM_UP = 3


class Answer(msgspec.Struct, frozen=True):
    """One turn: inferences, seconds until the last ended, bytes staged so far, digest of the outputs."""

    count: int
    seconds: float
    staged: int
    digest: str


class Runner(ClientProcess):
    """A process that runs a model through `way`: `plugin` or `openvino`."""

    MODULE = "softnpu.tools.bench.clients_process"

    def __init__(self, way: str, model: BenchModel, precision: str, socket: Path) -> None:
        super().__init__(way, socket, model, precision)

    def go(self, seconds: float) -> None:
        """Begin a turn."""
        self.say(str(seconds))

    def answer(self, seconds: float) -> Answer:
        """The end of the turn."""
        words = self.hear(seconds + _LATE_S)
        try:
            return msgspec.json.decode(words, type=Answer)
        except msgspec.DecodeError:
            raise self.failure(words) from None


class PreparedRequest:
    """A request ready to run: `infer` is one inference, and what there is to say of it."""

    def __init__(
        self, infer: Callable[[], object], outputs: Sequence[Any], staged: Callable[[], int]
    ) -> None:
        self.infer = infer
        self._outputs = outputs
        self._staged = staged

    def turn(self, seconds: float) -> Answer:
        """Inferences one after the other until the time is over."""
        infer, clock = self.infer, time.perf_counter
        start = clock()
        end, now, count = start + seconds, start, 0
        while now < end:
            infer()
            count += 1
            now = clock()
        digest = hashlib.sha256(b"".join(output.tobytes() for output in self._outputs)).hexdigest()
        return Answer(count, now - start, self._staged(), digest)


def _config(precision: str) -> dict[str, str]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "EXECUTION_MODE_HINT": "ACCURACY",
    }


def _through_plugin(socket: Path, model: BenchModel, precision: str) -> PreparedRequest:
    from softnpu.plugin import Core
    from softnpu.tools.bench.requests import random_inputs, read_model

    compiled = Core(socket).compile_model(model.path, "NPU", _config(precision), shapes=model.shapes)
    request = compiled.create_infer_request()
    for port, values in zip(compiled.inputs, random_inputs(read_model(model)), strict=True):
        request.get_tensor(port).data[...] = values
    outputs = [tensor.data for tensor in request.output_tensors]
    return PreparedRequest(lambda: request.infer(share_outputs=True), outputs, lambda: compiled.staged_bytes)


def _through_openvino(socket: Path, model: BenchModel, precision: str) -> PreparedRequest:
    from softnpu.tools.bench.requests import HostRequest, compile_on_host, random_inputs, read_model

    del socket
    read = read_model(model)
    request = HostRequest(compile_on_host(read, _config(precision)), random_inputs(read))
    for _ in range(_WARM_UP):
        request.infer()
    request.take_faster_way()
    return PreparedRequest(request.infer, request.outputs, lambda: 0)


WAYS = {"plugin": _through_plugin, "openvino": _through_openvino}


def main(arguments: list[str]) -> int:
    """`WAY SOCKET MODEL SHAPES-JSON PRECISION PARENT-PID`: says `ready`; a turn for each line of seconds."""
    way, socket, path, shapes, precision, parent = arguments
    linux.die_with_parent(int(parent))
    static = {name: tuple(shape) for name, shape in json.loads(shapes).items()}
    try:
        prepared = WAYS[way](Path(socket), BenchModel(Path(path).stem, Path(path), static), precision)
        for _ in range(_WARM_UP):
            prepared.infer()
        print(READY, flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(prepared.turn(float(line))).decode(), flush=True)
    except failures.expected() as error:
        print(failures.describe(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
