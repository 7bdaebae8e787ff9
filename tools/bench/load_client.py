"""A client of `bench load` and `bench weights`: its only turn compiles or imports a model, runs and holds it.

No part of the model exists before that turn, but all imports are done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import openvino as ov
from blake3 import blake3

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.plugin import Core
from softnpu.tools.bench import large_model
from softnpu.tools.bench.requests import random_inputs
from softnpu.tools.bench.worker import Worker
from softnpu.tools.shared.failures import ToolError

_CONFIG: Final = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_DEADLINE_S: Final = 600.0
_HELD: Final[list[object]] = []
"""Objects kept loaded until the process ends: its memory is measured, and others share the model."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start, called `name` in errors. `side` is npu or cpu; without `model` one of `size` is built.

    `driver_cache` and `cache_dir` are directories, `imports` and `exports` compiled models, or empty.
    """

    name: str
    side: str
    model: str = ""
    size: int = 0
    shapes: dict[str, tuple[int, ...]] = {}
    socket: str = ""
    driver_cache: str = ""
    cache_dir: str = ""
    imports: str = ""
    exports: str = ""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The result, in seconds: `compile_s` excludes `load_s`, `first_s` includes the request and its inputs.

    `outputs` is their digest.
    """

    open_s: float = 0.0
    compile_s: float
    load_s: float = 0.0
    first_s: float
    infer_s: float = 0.0
    cached: bool
    outputs: str

    @property
    def opened_s(self) -> float:
        """Seconds to a compiled model, including those to open the device."""
        return self.open_s + self.compile_s

    @property
    def loaded_s(self) -> float:
        """Seconds from the open device to a loaded model."""
        return self.compile_s + self.load_s

    @property
    def total_s(self) -> float:
        """Seconds to the first result."""
        return self.opened_s + self.load_s + self.first_s

    def check(self, what: str, cached: bool) -> None:
        """Raise `ToolError` unless the driver's cache had the model, or not, as expected."""
        if self.cached != cached:
            found = "came from a cache" if self.cached else "was compiled again"
            raise ToolError(what, found=f"the model {found}", expected="the other way")


@contextmanager
def client(start: Start) -> Iterator[Worker]:
    """Yield a process that has everything imported; it holds the model after `run`."""
    with Worker(start.name, "load_client:prepare", start) as process:
        process.wait_until_ready()
        yield process


def run(process: Worker) -> Started:
    """Let the process do its start."""
    process.begin()
    return process.answer(Started, _DEADLINE_S)


def prepare(start: Start) -> Callable[[float], Started]:
    """Return the start function."""
    os.environ[ENV_CACHE_DIR] = start.driver_cache
    on_npu = start.side == "npu"

    def turn(_: float) -> Started:
        model = Path(start.model) if start.model else large_model.build(start.size)
        clock = time.perf_counter
        begin = clock()
        core: Any = Core(start.socket) if on_npu else ov.Core()
        opened = clock()
        compiled = _on_npu(core, start, model) if on_npu else _on_cpu(core, start, model)
        ready = clock()
        request = compiled.create_infer_request()
        for index, array in enumerate(random_inputs(compiled.inputs)):
            np.copyto(request.get_input_tensor(index).data, array)
        fed = clock()
        request.infer(share_outputs=True)
        end = clock()
        if start.exports:
            _export(compiled, Path(start.exports), on_npu)
        digest = blake3()
        for index in range(len(compiled.outputs)):
            output = np.ascontiguousarray(request.get_output_tensor(index).data)
            digest.update(output.data.cast("B"))
        _HELD.append((model, compiled, request))
        load_s = compiled.load_ms / 1e3 if on_npu else 0.0
        return Started(
            open_s=opened - begin,
            compile_s=ready - opened - load_s,
            load_s=load_s,
            first_s=end - ready,
            infer_s=end - fed,
            cached=bool(compiled.get_property("LOADED_FROM_CACHE")),
            outputs=digest.hexdigest(),
        )

    return turn


def _config(start: Start) -> dict[str, str]:
    return {**_CONFIG, "CACHE_DIR": start.cache_dir} if start.cache_dir else dict(_CONFIG)


def _on_npu(core: Any, start: Start, model: Any) -> Any:
    if start.imports:
        return core.import_model(Path(start.imports), "NPU")
    return core.compile_model(model, "NPU", _config(start), shapes=start.shapes)


def _on_cpu(core: Any, start: Start, model: Any) -> Any:
    config = _config(start) | saturated_sums.properties()
    if start.imports:
        return core.import_model(Path(start.imports).read_bytes(), "CPU", config)
    read = core.read_model(model) if start.model else model
    if start.shapes:
        read.reshape({name: list(shape) for name, shape in start.shapes.items()})
    return core.compile_model(read, "CPU", config)


def _export(compiled: Any, path: Path, on_npu: bool) -> None:
    if on_npu:
        compiled.export_model(path)
    else:
        path.write_bytes(compiled.export_model().getvalue())
