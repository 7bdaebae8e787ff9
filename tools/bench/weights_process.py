"""A process of `bench weights`: it compiles one large model, runs it once, and holds it.

Nothing of the model is there when it says `ready`; the line that follows starts it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.common import linux
from softnpu.tools.bench import large_model
from softnpu.tools.bench.process import READY
from softnpu.tools.shared import failures

_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class WeightsStart(msgspec.Struct, frozen=True, kw_only=True):
    """A compilation. `side` is npu or cpu, `cache` the driver's; without a `model` it is built in memory."""

    side: str
    size: int
    model: str = ""
    socket: str = ""
    cache: str = ""


class WeightsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the compilation and of the first inference, and a digest of the output."""

    compile_s: float
    first_s: float
    cached: bool
    outputs: str


def _prepare(start: WeightsStart) -> Any:
    """The `Core` of the side, with everything imported."""
    if start.side == "npu":
        from softnpu.plugin import Core

        return Core(start.socket)
    import openvino as ov

    return ov.Core()


def _compile(core: Any, start: WeightsStart) -> WeightsAnswer:
    device = start.side.upper()
    model = Path(start.model) if start.model else large_model.build(start.size)
    begin = time.perf_counter()
    compiled = core.compile_model(model, device, _CONFIG)
    ready = time.perf_counter()
    request = compiled.create_infer_request()
    x = request.get_input_tensor(0).data
    x[...] = np.linspace(-1, 1, x.size, dtype=x.dtype).reshape(x.shape)
    before = time.perf_counter()
    request.infer(share_outputs=True)
    end = time.perf_counter()
    outputs = hashlib.sha256(request.get_output_tensor(0).data.tobytes()).hexdigest()
    _HELD.append((model, compiled, request))
    return WeightsAnswer(
        compile_s=ready - begin,
        first_s=end - before,
        cached=bool(compiled.get_property("LOADED_FROM_CACHE")),
        outputs=outputs,
    )


_HELD: list[object] = []
"""What stays until the process ends: its memory is measured."""


def main(arguments: list[str]) -> int:
    """`START-JSON PARENT-PID`: says `ready`, after the next line how it went; ends when its input does."""
    start = msgspec.json.decode(arguments[0], type=WeightsStart)
    linux.die_with_parent(int(arguments[1]))
    os.environ[ENV_CACHE_DIR] = start.cache
    kinds: tuple[type[Exception], ...] = (*failures.expected(), RuntimeError)  # the second for OpenVINO's own
    try:
        core = _prepare(start)
        print(READY, flush=True)
        if sys.stdin.readline():
            print(msgspec.json.encode(_compile(core, start)).decode(), flush=True)
    except kinds as error:
        print(failures.describe(error), flush=True)
        return 1
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
