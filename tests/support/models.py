"""Models for tests, generated where needed; the small real one is in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset15 as ops

Array = npt.NDArray[Any]


def random_square(size: int, seed: int) -> Array:
    """Return a matrix of f32 from 0 to 1, as `write_chain` takes one."""
    return np.random.default_rng(seed).random((size, size), dtype=np.float32)


def write_chain(folder: Path, size: int, steps: int, name: str = "chain") -> Path:
    """Write an IR without constants: a square matrix, multiplied by itself and scaled `steps` times.

    One inference costs 2 * steps * size^3 operations, so a test can choose its duration.
    """
    matrix = ops.parameter([size, size], ov.Type.f32, name="matrix")
    value: Any = matrix
    for _ in range(steps):
        value = ops.softmax(ops.matmul(value, matrix, False, False), axis=1)
    path = folder / f"{name}.xml"
    ov.serialize(ov.Model([value], [matrix], name), path)
    return path


def write_scale(folder: Path, factor: float, name: str = "scale", count: int = 4096) -> Path:
    """Write an IR with weights: `count` numbers, each multiplied by its own constant (`factor`)."""
    data = ops.parameter([count], ov.Type.f32, name="data")
    weights = ops.constant(np.full(count, factor, np.float32) + np.arange(count, dtype=np.float32) / count)
    product = ops.multiply(data, weights)
    product.output(0).set_names({"scaled"})
    model = ov.Model([product], [data], name)
    # default names are numbered per process: equal models would have different files
    weights.set_friendly_name("weights")
    product.set_friendly_name("product")
    model.get_results()[0].set_friendly_name("result")
    path = folder / f"{name}.xml"
    ov.serialize(model, path)
    return path


def image(seed: int = 1) -> Array:
    """Return an input of the small network in `digits`."""
    return np.random.default_rng(seed).random((1, 1, 8, 8), dtype=np.float32)


def on_cpu(xml: Path, *inputs: Array) -> list[Array]:
    """Return the f32 outputs of OpenVINO's own CPU device with the settings of a default compilation."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "EXECUTION_MODE_HINT": "ACCURACY",
    }
    compiled = ov.Core().compile_model(xml, "CPU", settings)
    request = compiled.create_infer_request()
    results = request.infer(list(inputs))
    return [np.array(results[output]) for output in compiled.outputs]
