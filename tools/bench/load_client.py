"""A client of `bench load`: its only turn is a start, from imports done to the first result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from blake3 import blake3

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.plugin import Core
from softnpu.tools.bench.load_start import Start, Started, Way
from softnpu.tools.bench.requests import random_inputs
from softnpu.tools.shared.inputs import Array

_HELD: list[object] = []
"""Objects kept loaded until the process ends."""


def prepare(start: Start) -> Callable[[float], Started]:
    """Return the start function, with everything imported."""
    side = on_npu if start.side == "npu" else on_cpu
    return lambda _: side(start)


def on_npu(start: Start) -> Started:
    """Start on the emulated device."""
    os.environ[ENV_CACHE_DIR] = start.cache if start.way is not Way.CACHE_DIR else ""
    begin = time.perf_counter()
    core = Core(start.socket)
    if start.imports:
        compiled = core.import_model(Path(start.exported), "NPU")
    else:
        compiled = core.compile_model(Path(start.model), "NPU", start.config, shapes=start.shapes)
    ready = time.perf_counter()
    request = compiled.create_infer_request()
    for index, array in enumerate(random_inputs(compiled.inputs)):
        np.copyto(request.get_input_tensor(index).data, array)
    request.infer(share_outputs=True)
    end = time.perf_counter()
    if start.prepare and start.way is Way.IMPORT:
        compiled.export_model(Path(start.exported))
    outputs = [request.get_output_tensor(index).data for index in range(len(compiled.outputs))]
    started = Started(
        total_ms=(end - begin) * 1e3,
        compile_ms=(ready - begin) * 1e3 - compiled.load_ms,
        load_ms=compiled.load_ms,
        first_ms=(end - ready) * 1e3,
        cached=bool(compiled.get_property("LOADED_FROM_CACHE")),
        outputs=_digest(outputs),
    )
    _HELD.append((compiled, request))
    return started


def on_cpu(start: Start) -> Started:
    """Start on OpenVINO's CPU device, in this process."""
    config = start.config | saturated_sums.properties()
    begin = time.perf_counter()
    core = ov.Core()
    if start.imports:
        compiled = core.import_model(Path(start.exported).read_bytes(), "CPU", config)
    else:
        model = core.read_model(start.model)
        if start.shapes:
            model.reshape({name: list(shape) for name, shape in start.shapes.items()})
        compiled = core.compile_model(model, "CPU", config)
    ready = time.perf_counter()
    request = compiled.create_infer_request()
    for index, array in enumerate(random_inputs(compiled.inputs)):
        np.copyto(request.get_input_tensor(index).data, array)
    request.infer(share_outputs=True)
    end = time.perf_counter()
    if start.prepare and start.way is Way.IMPORT:
        Path(start.exported).write_bytes(compiled.export_model().getvalue())
    outputs = [request.get_output_tensor(index).data for index in range(len(compiled.outputs))]
    return Started(
        total_ms=(end - begin) * 1e3,
        compile_ms=(ready - begin) * 1e3,
        load_ms=0.0,
        first_ms=(end - ready) * 1e3,
        cached=bool(compiled.get_property("LOADED_FROM_CACHE")),
        outputs=_digest(outputs),
    )


def _digest(outputs: Sequence[Array]) -> str:
    hasher = blake3()
    for array in outputs:
        hasher.update(np.ascontiguousarray(array).data.cast("B"))
    return hasher.hexdigest()
