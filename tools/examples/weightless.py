"""A compiled model without its weights: a small file, which locates them again and rejects others.

Run it: `python -m softnpu.tools.examples.weightless`. It compiles a dense network from memory with its
weights in a safetensors file, exports it without them, and imports it in three ways.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from softnpu.plugin import BlobError, Core

SIZE = 512
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def main() -> None:
    """Export without weights, import again, compare with OpenVINO's CPU device."""
    with tempfile.TemporaryDirectory() as folder:
        _show(Path(folder))


def _show(folder: Path) -> None:
    weights = folder / "model.safetensors"
    _write_safetensors(weights, _arrays())
    model = _model()
    image = np.random.default_rng(1).random((1, SIZE), np.float32)
    expected = ov.Core().compile_model(model, "CPU", F32)(image)[0]

    core = Core()
    # the constants are found in the file, and the device gets a range of it: zero-copy
    compiled = core.compile_model(model, "NPU", {"WEIGHTS_PATH": weights, "ENABLE_WEIGHTLESS": True})
    exported = folder / "model.blob"
    compiled.export_model(exported)
    print(f"weights {weights.stat().st_size >> 10} KiB, compiled model {exported.stat().st_size >> 10} KiB")
    print("requires", compiled.get_property("RUNTIME_REQUIREMENTS"))
    print("runs here:", core.check_compatibility(exported).supported)

    imported = core.import_model(exported)  # the file knows its weights' location
    print("imported, weights where they were:", np.array_equal(imported(image)[0], expected))

    moved = weights.rename(folder / "moved.safetensors")
    imported = core.import_model(exported, "NPU", {"WEIGHTS_PATH": moved})
    print("imported, weights moved:", np.array_equal(imported(image)[0], expected))
    imported = core.import_model(exported, "NPU", model=model)
    print("imported, weights of the model:", np.array_equal(imported(image)[0], expected))

    arrays = _arrays()
    arrays["second"][0, 0] += 1
    _write_safetensors(moved, arrays)
    try:
        core.import_model(exported, "NPU", {"WEIGHTS_PATH": moved})
    except BlobError as refused:
        print("other weights are refused:", "constant 'second'" in str(refused))


def _arrays() -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(0)
    names = ("first", "second")
    return {name: (random.standard_normal((SIZE, SIZE)) / 16).astype(np.float32) for name in names}


def _model() -> ov.Model:
    """Return two dense layers whose constants are named like the arrays in the file."""
    data = ops.parameter([1, SIZE], np.float32, name="data")
    value: Any = data
    for name, array in _arrays().items():
        value = ops.relu(ops.matmul(value, ops.constant(array, name=name), False, True))
    return ov.Model([value], [data], "dense")


def _write_safetensors(path: Path, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))


if __name__ == "__main__":
    main()
