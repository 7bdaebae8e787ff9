"""This host's peak rates: operations a second in a large product, bytes a second in a copy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

_SIDE: Final = 768
_COPIED: Final = 64 << 20
_LONG_ENOUGH_S: Final = 0.5


@dataclass(frozen=True)
class Roofline:
    """The largest measured rates, in operations and bytes a second."""

    operations: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations per byte above which a layer is bound by arithmetic."""
        return self.operations / self.bandwidth

    def at(self, intensity: float) -> float:
        """Return the most operations a second that a layer of this intensity can reach."""
        return min(self.operations, self.bandwidth * intensity)


def measure() -> Roofline:
    """Measure in this process, with OpenVINO's CPU runtime in f32, as engines compute."""
    left, right = (ops.parameter([_SIDE, _SIDE], np.float32) for _ in range(2))
    model = ov.Model([ops.matmul(left, right, False, False)], [left, right], "product")
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(model, "CPU", config).create_infer_request()
    for index in range(2):
        request.get_input_tensor(index).data[:] = 0.5
    source = np.ones(_COPIED, np.uint8)
    target = np.zeros_like(source)
    # a copy reads and writes each byte
    return Roofline(
        2.0 * _SIDE**3 / _shortest(request.infer),
        2.0 * _COPIED / _shortest(lambda: np.copyto(target, source)),
    )


def _shortest(call: Callable[[], object]) -> float:
    call()
    shortest, begin = math.inf, time.perf_counter()
    # others may need the processors as well: the best of many short rounds is closest to the peak
    while time.perf_counter() - begin < _LONG_ENOUGH_S:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest
