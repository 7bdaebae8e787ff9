"""A process of `bench clients`: it holds one request, and runs it for as long as it is told to."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from softnpu.emulator.common import linux
from softnpu.tools import failures
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.failures import ToolError

_START_S = 180.0
_LATE_S = 60.0
_END_S = 10.0
_WARM_UP = 3


class Answer(msgspec.Struct, frozen=True):
    """One turn: inferences, seconds until the last ended, bytes staged so far, digest of the outputs."""

    count: int
    seconds: float
    staged: int
    digest: str


class Runner:
    """A process that runs a model through `way`: `plugin` or `openvino`."""

    def __init__(self, way: str, model: BenchModel, precision: str, socket: Path) -> None:
        self._way = way
        shapes = json.dumps(dict(model.shapes))
        arguments = [way, str(socket), str(model.path), shapes, precision, str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "softnpu.tools.bench.clients_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the caller, which ends it
        )

    def wait_until_ready(self) -> None:
        """Return when the model is loaded and the first inferences have ended."""
        words = self._hear(_START_S)
        if words != "ready":
            raise ToolError(
                f"client through {self._way}", found=words or "it died", expected="inferences that end"
            )

    def go(self, seconds: float) -> None:
        """Begin a turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        self._process.stdin.flush()

    def answer(self, seconds: float) -> Answer:
        """The end of the turn."""
        words = self._hear(seconds + _LATE_S)
        try:
            return msgspec.json.decode(words, type=Answer)
        except msgspec.DecodeError:
            raise ToolError(
                f"client through {self._way}", found=words or "it died", expected="inferences that end"
            ) from None

    def _hear(self, deadline_s: float) -> str:
        assert self._process.stdout is not None
        heard = select.select([self._process.stdout], [], [], deadline_s)[0]
        return self._process.stdout.readline().decode().strip() if heard else f"silent for {deadline_s:g} s"

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=_END_S)


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
        print("ready", flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(prepared.turn(float(line))).decode(), flush=True)
    except failures.expected() as error:
        print(failures.describe(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
