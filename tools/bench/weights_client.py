"""A client of `bench weights`: it compiles one large model, runs it once, and holds it.

No part of the model exists before its only turn.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.tools.bench import large_model

_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class WeightsStart(msgspec.Struct, frozen=True, kw_only=True):
    """A compilation. `side` is npu or cpu, `cache` the driver's; without `model` it is built in memory."""

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


def prepare(start: WeightsStart) -> Callable[[float], WeightsAnswer]:
    """Import everything; return the function that compiles the model."""
    os.environ[ENV_CACHE_DIR] = start.cache
    core: Any
    if start.side == "npu":
        from softnpu.plugin import Core

        core = Core(start.socket)
    else:
        import openvino as ov

        core = ov.Core()
    held: list[object] = []  # until the process ends: its memory is measured

    def turn(_: float) -> WeightsAnswer:
        model = Path(start.model) if start.model else large_model.build(start.size)
        begin = time.perf_counter()
        compiled = core.compile_model(model, start.side.upper(), _CONFIG)
        ready = time.perf_counter()
        request = compiled.create_infer_request()
        x = request.get_input_tensor(0).data
        x[...] = np.linspace(-1, 1, x.size, dtype=x.dtype).reshape(x.shape)
        before = time.perf_counter()
        request.infer(share_outputs=True)
        end = time.perf_counter()
        held.append((model, compiled, request))
        return WeightsAnswer(
            compile_s=ready - begin,
            first_s=end - before,
            cached=bool(compiled.get_property("LOADED_FROM_CACHE")),
            outputs=hashlib.sha256(request.get_output_tensor(0).data.tobytes()).hexdigest(),
        )

    return turn
