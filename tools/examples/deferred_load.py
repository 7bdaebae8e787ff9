"""Deferred weights: loaded with the first request, not when the model is imported.

Run it: `python -m softnpu.tools.examples.deferred_load`. It exports a model of 64 MiB of weights, imports it
twice, and shows the cost in time and device memory, and that wrong weights are detected in either case.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.plugin import Core, NpuError

SIZE = 2048
LAYERS = 4
DEFERRED = {"NPU_DEFER_WEIGHTS_LOAD": True}


def main() -> None:
    """Import with deferred weights, show times and memory, then corrupt the file."""
    with tempfile.TemporaryDirectory() as folder:
        _show(Path(folder, "model.blob"))


def _show(exported: Path) -> None:
    core = Core()
    image = np.random.default_rng(1).random((1, SIZE), np.float32)
    compiled = core.compile_model(_model(), "NPU")
    expected = compiled(image)[0].copy()
    compiled.export_model(exported)
    del compiled
    print(f"exported {exported.stat().st_size >> 20} MiB")

    before = _memory(core)
    start = time.perf_counter()
    imported = core.import_model(exported, "NPU", DEFERRED)
    print(
        f"imported in {_ms(start)}, loaded in {imported.load_ms:.0f} ms, {_memory(core) - before} MiB on"
        f" the device"
    )

    start = time.perf_counter()
    request = imported.create_infer_request()
    print(f"first request in {_ms(start)}, of which the load took {imported.load_ms:.0f} ms")
    print(f"{_memory(core) - before} MiB on the device")
    print("the numbers are right:", np.array_equal(request.infer(image)[0], expected))
    del imported, request

    with exported.open("r+b") as file:
        file.seek(exported.stat().st_size // 2)
        file.write(b"spoiled!")
    imported = core.import_model(exported, "NPU", DEFERRED)
    try:
        imported.create_infer_request()
    except NpuError as refused:
        print("spoiled weights are noticed by the first request:", "weights, constant" in str(refused))


def _memory(core: Core) -> int:
    """Return MiB of device memory that this process uses."""
    return int(core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")) >> 20


def _ms(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1e3:.0f} ms"


def _model() -> ov.Model:
    random = np.random.default_rng(0)
    data = ops.parameter([1, SIZE], np.float32, name="data")
    value: Any = data
    for _ in range(LAYERS):
        weights = random.standard_normal((SIZE, SIZE), np.float32) / 32
        value = ops.relu(ops.matmul(value, ops.constant(weights), False, True))
    return ov.Model([value], [data], "dense")


if __name__ == "__main__":
    main()
