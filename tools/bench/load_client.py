"""A client of `bench load`: one start of a program, from nothing to the first result."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from blake3 import blake3

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.plugin import Core
from softnpu.tools.bench.load_start import Start, Started, Way
from softnpu.tools.shared import failures
from softnpu.tools.shared.inputs import Array, random_array


def on_npu(start: Start) -> Started:
    """The start on the emulated device; with `hold` it prints itself how it went."""
    os.environ[ENV_CACHE_DIR] = start.cache if start.way is not Way.CACHE_DIR else ""
    begin = time.perf_counter()
    core = Core(start.socket)
    if start.imports:
        compiled = core.import_model(Path(start.exported), "NPU")
    else:
        compiled = core.compile_model(Path(start.model), "NPU", start.config, shapes=start.shapes)
    ready = time.perf_counter()
    request = compiled.create_infer_request()
    for index, array in enumerate(_inputs(compiled.inputs)):
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
    if start.hold:
        print(msgspec.json.encode(started).decode(), flush=True)
        sys.stdin.read()
    return started


def on_cpu(start: Start) -> Started:
    """The start on OpenVINO's CPU device, in this process."""
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
    for index, array in enumerate(_inputs(compiled.inputs)):
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


def _inputs(ports: Sequence[Any]) -> list[Array]:
    """The same values in every start."""
    random = np.random.default_rng(7)
    return [
        random_array(random, port.any_name, port.element_type.to_dtype(), list(port.shape)) for port in ports
    ]


def _digest(outputs: Sequence[Array]) -> str:
    hasher = blake3()
    for array in outputs:
        hasher.update(np.ascontiguousarray(array).data.cast("B"))
    return hasher.hexdigest()


def main(arguments: list[str]) -> int:
    """`START-JSON`: prints how it went as JSON, or what is wrong."""
    start = msgspec.json.decode(arguments[0], type=Start)
    kinds: tuple[type[Exception], ...] = (*failures.expected(), RuntimeError)  # the second for OpenVINO's own
    try:
        started = on_npu(start) if start.side == "npu" else on_cpu(start)
    except kinds as error:
        print(failures.describe(error), flush=True)
        return 1
    print(msgspec.json.encode(started).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
