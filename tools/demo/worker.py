"""A client process of the demonstration; a module of its own because it is imported there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softnpu.plugin import Core


@dataclass(frozen=True)
class Share:
    """A process's results: `probabilities` f32 [n, 10], seconds of each inference, and the participants."""

    pid: int
    daemon_pid: int
    engine_pid: int
    platform: str
    probabilities: npt.NDArray[np.float32]
    times_s: list[float]
    staged_by_driver: int
    staged_by_engine: int
    compile_ms: float
    config: dict[str, str]


def classify(model: Path, images: npt.NDArray[Any]) -> Share:
    """Classify `images` f32 [n, 1, 8, 8] one by one on the emulated NPU."""
    core = Core()
    compiled = core.compile_model(model, core.available_devices[0])
    request = compiled.create_infer_request()
    # both are views of device memory: writing and reading them never copies
    image = request.get_tensor("image").data
    probabilities = request.get_tensor("probabilities").data
    device = compiled.context.device
    staged_before = device.get_status().staged_bytes
    results = np.empty((len(images), probabilities.shape[1]), np.float32)
    times_s = []
    for index, pixels in enumerate(images):
        image[0] = pixels
        start = time.perf_counter()
        request.infer()
        times_s.append(time.perf_counter() - start)
        results[index] = probabilities[0]
    status = device.get_status()
    return Share(
        pid=os.getpid(),
        daemon_pid=core.driver.daemon_pid,
        engine_pid=status.engine_pid,
        platform=device.info.platform,
        probabilities=results,
        times_s=times_s,
        staged_by_driver=compiled.staged_bytes,
        staged_by_engine=status.staged_bytes - staged_before,
        compile_ms=compiled.compile_ms,
        config=dict(compiled.meta.config),
    )
